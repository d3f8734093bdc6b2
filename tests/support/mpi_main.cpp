// main() of the MPI tests: every rank runs every test, rank 0 prints, and all ranks return the worst verdict.
#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdio>
#if SLIP_TEST_GPU
#include "support/gpu_required.hpp"
#endif

namespace {

// Failures of the ranks that do not print, one line each.
class FailureLines : public ::testing::EmptyTestEventListener {
 public:
  explicit FailureLines(int rank) : rank_(rank) {}
  void OnTestPartResult(const ::testing::TestPartResult& r) override {
    if (r.failed()) {
      std::fprintf(stderr, "rank %d: %s:%d: %s\n", rank_, r.file_name() ? r.file_name() : "?",
                   r.line_number(), r.message());
    }
  }

 private:
  int rank_;
};

}  // namespace

int main(int argc, char** argv) {
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  ::testing::InitGoogleTest(&argc, argv);
  if (rank != 0) {
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    delete listeners.Release(listeners.default_xml_generator());
    listeners.Append(new FailureLines(rank));
  }
#if SLIP_TEST_GPU
  const int without = slip::testing::without_gpu();  // the same on every rank of a host
  const int mine = without != 0 ? without : RUN_ALL_TESTS();
#else
  const int mine = RUN_ALL_TESTS();
#endif
  int worst = 1;
  MPI_Allreduce(&mine, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  if (rank == 0 && mine == 0 && worst != 0) std::fprintf(stderr, "another rank failed\n");
  MPI_Finalize();
  return worst;
}
