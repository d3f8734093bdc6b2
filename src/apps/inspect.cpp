#include "apps/commands.hpp"
#include "core/check.hpp"
namespace slip {
int run_inspect(const Arguments&) { fail_usage("inspect"); }
}  // namespace slip
