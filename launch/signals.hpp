// SIGUSR1, SIGTERM and SIGINT ask a rank to save and stop; the handler only sets a flag, the loops look at
// it. A second SIGTERM or SIGINT ends the process; within a second of the first it is taken for an echo of it
// (a launcher and the terminal may both pass one on).
#pragma once
namespace slip {
// The first thing that `main` does for commands that stop so: what comes before would end the process.
void catch_stop_signals();
bool stop_signalled();
}  // namespace slip
