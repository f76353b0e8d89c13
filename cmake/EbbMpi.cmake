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
    # mpirun alone starts programs; to build one takes the headers, too.
    find_program(EBB_MPIRUN NAMES mpirun mpiexec)
    set(_why "no MPI is installed")
    if(MPI_CXX_FOUND)
      set(_why "an MPI is there, but no mpiexec to start its programs")
    elseif(EBB_MPIRUN)
      set(_why "${EBB_MPIRUN} is there, but not the headers of its MPI")
    endif()
    message(NOTICE "-- gpt-train-mpi and the tests of mpi_ranks.h are left out: ${_why}. "
                   "On Debian: apt-get install libopenmpi-dev openmpi-bin, then "
                   "cmake --fresh --preset release")
  endif()
endif()
