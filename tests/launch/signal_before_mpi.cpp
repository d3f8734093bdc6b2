// Loaded with LD_PRELOAD: every process gets SIGUSR1 at the moment when it starts MPI.
#include <mpi.h>

#include <csignal>
#include <cstdio>

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  std::fputs("signal before MPI\n", stderr);
  std::raise(SIGUSR1);
  return PMPI_Init_thread(argc, argv, required, provided);
}
