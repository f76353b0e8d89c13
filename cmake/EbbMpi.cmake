# MPI for the tests of libmuon/comm/mpi_ranks.h and for gpt-train-mpi, where one is installed;
# libraries and tools never need it. EBB_MPI says whether it is there. Sanitizers would report what
# MPI itself keeps.
set(EBB_MPI OFF)
if(EBB_TESTS AND EBB_MUON AND NOT EBB_SANITIZE)
  set(MPI_CXX_SKIP_MPICXX ON)  # C++ uses MPI by its C interface
  find_package(MPI QUIET COMPONENTS CXX)
  if(MPI_CXX_FOUND AND MPIEXEC_EXECUTABLE)
    set(EBB_MPI ON)
  else()
    message(STATUS "No MPI found: gpt-train-mpi and the tests of mpi_ranks.h are left out")
  endif()
endif()
