// Who may send: a fixed number of slots, each out or not. No MPI and no CUDA, so a test can drive every order
// of events.
#pragma once
#include <optional>
#include <vector>

namespace slip {

class Credits {
 public:
  explicit Credits(int slots);
  std::optional<int> take();  // the lowest free slot; nullopt: back-pressure
  void give_back(int slot);   // twice is an error
  int slots() const { return static_cast<int>(taken_.size()); }
  int free() const { return free_; }

 private:
  std::vector<bool> taken_;
  int free_;
};

}  // namespace slip
