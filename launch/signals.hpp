// SIGUSR1, SIGTERM and SIGINT ask a rank to save and stop; the handler only sets a flag, the loops look at
// it.
#pragma once
namespace slip {
void catch_stop_signals();
bool stop_signalled();
}  // namespace slip
