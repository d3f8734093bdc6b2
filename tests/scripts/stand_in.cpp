// Stands in for slipstream under launch/run: ends in the way that its first argument names.
#include <mpi.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>

namespace {
volatile std::sig_atomic_t g_stop = 0;
}

int main(int argc, char** argv) {
  std::signal(SIGUSR1, [](int) { g_stop = 1; });
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const std::string how = argc > 1 ? argv[1] : "";
  int code = 0;
  if (how == "arguments" && rank == 0) {
    std::printf("%d ranks", ranks);
    for (int i = 2; i < argc; ++i) std::printf(" <%s>", argv[i]);
    std::printf("\n");
  }
  if (how == "usage") code = 2;
  if (how == "abort" && rank == 1) MPI_Abort(MPI_COMM_WORLD, 3);
  if (how == "killed" && rank == 1) std::raise(SIGKILL);
  if (how == "killed" || how == "until-signal") {
    if (rank == 0) std::printf("ready\n"), std::fflush(stdout);
    for (int any = 0; any == 0;) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      const int mine = g_stop;
      MPI_Allreduce(&mine, &any, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    }
    if (rank == 0) std::printf("saved\n");
    code = 75;
  }
  MPI_Finalize();
  return code;
}
