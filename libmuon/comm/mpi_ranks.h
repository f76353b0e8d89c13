// MPI: the Communicator of the processes of an MPI_Comm. A header alone, compiled by the program
// that has MPI, because Open MPI and MPICH share no binary interface: ebb::muon links neither.
//
//   int granted = 0;
//   MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &granted);
//   auto ranks = ebb::libmuon::make_mpi_ranks(MPI_COMM_WORLD);
//
// Destroy what was made before MPI_Finalize. After Code::peer, end the job with MPI_Abort: what
// makes a rank silent makes MPI_Finalize wait for it, too.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ebb/libmuon/comm/message_ranks.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libmuon {
namespace mpi {

inline Result<> checked(int code, std::string_view call) {
  if (code == MPI_SUCCESS) return {};
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int size = 0;
  if (MPI_Error_string(code, text.data(), &size) != MPI_SUCCESS) size = 0;
  text.resize(static_cast<std::size_t>(size));
  return Error{Code::peer, compose("{}: {}", call, text)};
}

// What MPI was initialised with. Another thread exchanges while the trainer's own works.
inline Result<> check_threads() {
  int granted = MPI_THREAD_SINGLE;
  EBB_TRY(checked(MPI_Query_thread(&granted), "MPI_Query_thread"));
  if (granted >= MPI_THREAD_MULTIPLE) return {};
  const std::string_view name = granted == MPI_THREAD_SINGLE     ? "MPI_THREAD_SINGLE"
                                : granted == MPI_THREAD_FUNNELED ? "MPI_THREAD_FUNNELED"
                                                                 : "MPI_THREAD_SERIALIZED";
  return Error{Code::unsupported,
               compose("MPI runs with {}: the engine's threads need MPI_THREAD_MULTIPLE", name),
               "MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &granted)"};
}

inline Result<> check_initialised() {
  int begun = 0;
  int ended = 0;
  EBB_TRY(checked(MPI_Initialized(&begun), "MPI_Initialized"));
  EBB_TRY(checked(MPI_Finalized(&ended), "MPI_Finalized"));
  if (begun != 0 && ended == 0) return {};
  return Error{Code::state, begun == 0 ? "MPI is not initialised" : "MPI was finalised",
               "MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &granted)"};
}

// Errors are answers while it lives; then whatever the communicator's owner wanted.
class ErrorsReturn {
 public:
  explicit ErrorsReturn(MPI_Comm comm) : comm_(comm) {
    MPI_Comm_get_errhandler(comm_, &before_);
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  }
  ~ErrorsReturn() {
    MPI_Comm_set_errhandler(comm_, before_);
    MPI_Errhandler_free(&before_);
  }
  ErrorsReturn(const ErrorsReturn&) = delete;
  ErrorsReturn& operator=(const ErrorsReturn&) = delete;

 private:
  const MPI_Comm comm_;
  MPI_Errhandler before_ = MPI_ERRHANDLER_NULL;
};

// Owns the duplicate it works on. Everything is begun and then tested: no call of MPI waits.
class MpiTransport : public Transport {
 public:
  // Collective over `comm`, which stays its owner's. Code::peer where the others do not come within
  // the limit (zero: none).
  static Result<std::unique_ptr<Transport>> open(MPI_Comm comm, std::chrono::milliseconds limit) {
    const ErrorsReturn quiet(comm);
    MPI_Comm own = MPI_COMM_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
    EBB_TRY(checked(MPI_Comm_idup(comm, &own, &request), "MPI_Comm_idup"));
    const auto begin = Clock::now();
    for (int done = 0; done == 0;) {
      EBB_TRY(checked(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Comm_idup"));
      if (done == 0 && limit.count() != 0 && Clock::now() - begin >= limit)
        return Error{Code::peer, compose("not all ranks made this communicator within {} ms, which "
                                         "is the limit",
                                         limit.count())};
      if (done == 0) std::this_thread::sleep_for(kLook);
    }
    EBB_TRY(checked(MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler"));
    return std::unique_ptr<Transport>(std::make_unique<MpiTransport>(own));
  }

  explicit MpiTransport(MPI_Comm own) : comm_(own) {
    int rank = 0;
    int world = 0;
    MPI_Comm_rank(comm_, &rank);
    MPI_Comm_size(comm_, &world);
    rank_ = Rank{static_cast<std::uint32_t>(rank)};
    world_ = static_cast<std::uint32_t>(world);
    int* most = nullptr;
    int found = 0;
    MPI_Comm_get_attr(comm_, MPI_TAG_UB, static_cast<void*>(&most), &found);
    if (found != 0) most_tag_ = *most;
  }
  // Waits a little for the others' farewells: behind them nothing comes any more, and the duplicate
  // can be freed. Where one does not come, the duplicate is kept until MPI_Finalize, lest a late
  // message meet the communicator that would get its number.
  ~MpiTransport() override {
    if (said_farewell()) MPI_Comm_free(&comm_);
    for (auto* all : {&sends_, &receives_})
      for (Message& message : *all)
        if (message.request != MPI_REQUEST_NULL) static_cast<void>(message.bytes.release());
  }
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  Rank rank() const override { return rank_; }
  std::uint32_t world() const override { return world_; }
  std::uint32_t tags() const override { return static_cast<std::uint32_t>(most_tag_); }

  Result<> send(Rank to, std::uint32_t tag, ByteVector message) override {
    const libswap::MutexLock lock(mutex_);
    return begin_send(to, tag, std::move(message));
  }
  Result<std::vector<Rank>> unsent(std::uint32_t tag) override {
    const libswap::MutexLock lock(mutex_);
    EBB_TRY(advance(sends_));
    std::erase_if(sends_, is_through);
    std::vector<Rank> peers;
    for (const Message& message : sends_)
      if (message.tag == tag) peers.push_back(message.peer);
    return peers;
  }
  Result<std::optional<Arrived>> receive(std::uint32_t tag) override {
    const libswap::MutexLock lock(mutex_);
    EBB_TRY(begin_receive(static_cast<int>(tag)));
    EBB_TRY(advance(receives_));
    for (auto message = receives_.begin(); message != receives_.end(); ++message) {
      if (message->tag != tag || !is_through(*message) || !is_first_of_its_rank(*message)) continue;
      std::optional<Arrived> arrived = Arrived{message->peer, std::move(*message->bytes)};
      receives_.erase(message);
      return arrived;
    }
    return std::optional<Arrived>();
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kLook{100};
  static constexpr std::chrono::seconds kFarewell{2};
  static constexpr std::size_t kMostReceives = 8;  // of one tag, on their way

  // Its bytes are MPI's while the request is.
  struct Message {
    Rank peer{};
    std::uint32_t tag = 0;
    std::unique_ptr<ByteVector> bytes;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  static bool is_through(const Message& message) { return message.request == MPI_REQUEST_NULL; }

  Result<> begin_send(Rank to, std::uint32_t tag, ByteVector bytes) EBB_REQUIRES(mutex_) {
    Message message{to, tag, std::make_unique<ByteVector>(std::move(bytes))};
    EBB_TRY(checked(
        MPI_Isend(message.bytes->data(), static_cast<int>(message.bytes->size()), MPI_BYTE,
                  static_cast<int>(index_of(to)), static_cast<int>(tag), comm_, &message.request),
        "MPI_Isend"));
    sends_.push_back(std::move(message));
    return {};
  }
  // One that has arrived, of any rank; none: nothing. Long ones travel only now.
  Result<> begin_receive(int tag) EBB_REQUIRES(mutex_) {
    if (std::ranges::count(receives_, static_cast<std::uint32_t>(tag), &Message::tag) >=
        static_cast<std::ptrdiff_t>(kMostReceives))
      return {};
    int found = 0;
    MPI_Message matched = MPI_MESSAGE_NULL;
    MPI_Status status;
    EBB_TRY(
        checked(MPI_Improbe(MPI_ANY_SOURCE, tag, comm_, &found, &matched, &status), "MPI_Improbe"));
    if (found == 0) return {};
    int size = 0;
    EBB_TRY(checked(MPI_Get_count(&status, MPI_BYTE, &size), "MPI_Get_count"));
    Message message{Rank{static_cast<std::uint32_t>(status.MPI_SOURCE)},
                    static_cast<std::uint32_t>(status.MPI_TAG),
                    std::make_unique<ByteVector>(static_cast<std::size_t>(size))};
    EBB_TRY(checked(MPI_Imrecv(message.bytes->data(), size, MPI_BYTE, &matched, &message.request),
                    "MPI_Imrecv"));
    receives_.push_back(std::move(message));
    return {};
  }
  Result<> advance(std::list<Message>& messages) EBB_REQUIRES(mutex_) {
    for (Message& message : messages) {
      int done = 0;
      EBB_TRY(checked(MPI_Test(&message.request, &done, MPI_STATUS_IGNORE), "MPI_Test"));
    }
    return {};
  }
  bool is_first_of_its_rank(const Message& message) const EBB_REQUIRES(mutex_) {
    const auto same = [&](const Message& other) {
      return other.peer == message.peer && other.tag == message.tag;
    };
    return &*std::ranges::find_if(receives_, same) == &message;
  }

  // Tells all that nothing follows, and takes what comes until all have told so.
  bool said_farewell() {
    const libswap::MutexLock lock(mutex_);
    const auto farewell = static_cast<std::uint32_t>(most_tag_);
    for (std::uint32_t peer = 0; peer < world_; ++peer)
      if (Rank{peer} != rank_ && !begin_send(Rank{peer}, farewell, ByteVector(1))) return false;
    std::uint32_t gone = 1;  // this one
    for (const auto end = Clock::now() + kFarewell; Clock::now() < end;) {
      if (!begin_receive(MPI_ANY_TAG) || !advance(receives_) || !advance(sends_)) return false;
      gone += static_cast<std::uint32_t>(std::erase_if(receives_, [&](const Message& message) {
        return is_through(message) && message.tag == farewell;
      }));
      std::erase_if(receives_, is_through);
      std::erase_if(sends_, is_through);
      if (gone == world_ && sends_.empty() && receives_.empty()) return true;
      std::this_thread::sleep_for(kLook);
    }
    return false;
  }

  MPI_Comm comm_;
  Rank rank_{};
  std::uint32_t world_ = 1;
  int most_tag_ = 32767;  // what the standard promises
  libswap::Mutex mutex_;
  std::list<Message> sends_ EBB_GUARDED_BY(mutex_), receives_ EBB_GUARDED_BY(mutex_);
};

}  // namespace mpi

// Collective. The ranks of `comm`, which may be a part of the world's (MPI_Comm_split); it stays
// the caller's and is not used after this call. `limit`: how long ranks wait for each other (zero:
// without end), here and later. All error handling of `comm` is as before.
//   Code::state        MPI is not initialised, or finalised
//   Code::usage        no communicator of one group; ranks that name different limits
//   Code::unsupported  on all ranks, where one has less than MPI_THREAD_MULTIPLE
//   Code::peer         not all ranks came; MPI's own errors, in its words
inline Result<std::unique_ptr<Communicator>> make_mpi_ranks(
    MPI_Comm comm, std::chrono::milliseconds limit = kPeerLimit) {
  EBB_TRY(mpi::check_initialised());
  if (comm == MPI_COMM_NULL) return Error{Code::usage, "make_mpi_ranks: MPI_COMM_NULL"};
  int between = 0;
  EBB_TRY(mpi::checked(MPI_Comm_test_inter(comm, &between), "MPI_Comm_test_inter"));
  if (between != 0)
    return Error{Code::usage, "make_mpi_ranks: a communicator between two groups",
                 "MPI_Intercomm_merge makes one of both"};
  EBB_TRY_ASSIGN(auto transport, mpi::MpiTransport::open(comm, limit));
  return make_message_ranks(std::move(transport), limit, mpi::check_threads());
}

}  // namespace ebb::libmuon
