#include "io/h5.hpp"

#include <algorithm>

#include "core/log.hpp"

namespace slip {

H5Id::~H5Id() {
  if (id_ >= 0 && close_ != nullptr && close_(id_) < 0)
    log_error("HDF5: a handle would not close: " + h5_error());
}

std::string h5_error() {
  std::string text;
  const auto take_first = [](unsigned n, const H5E_error2_t* e, void* out) -> herr_t {
    if (n == 0 && e->desc != nullptr) *static_cast<std::string*>(out) = e->desc;
    return 0;
  };
  if (H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, take_first, &text) < 0 || text.empty())
    text = "HDF5 gives no reason";
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');  // what a driver says of errno has several lines
  return text;
}

void require_threadsafe_h5() {
  hbool_t safe = 0;
  if (H5is_library_threadsafe(&safe) < 0 || !safe)
    fail("this HDF5 library was built without thread safety; the packages of Debian and Ubuntu have it");
}

void h5_quiet() { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

}  // namespace slip
