// One line per event, with the rank, to standard error and (when a run directory exists) to
// log/rank-NNNN.log. Messages are built by the caller with fmt. Any thread may call any of these.
#pragma once
#include <string>

namespace slip {

void log_init(int rank, int ranks);         // before it, lines carry no rank
void log_to_file(const std::string& path);  // from now on every line goes there too, info and above
void log_quiet_terminal(bool quiet);  // info and warnings of this thread go to the file only: a progress
                                      // line owns the terminal, or rank 0 says the same
bool log_shows();                     // would log_info show a message on the terminal?
void log_info(
    const std::string& message);  // rank 0 shows it on the terminal; every rank writes it to its file
void log_warn(const std::string& message);  // every rank shows it
void log_error(const std::string& message);
std::string host_name();

}  // namespace slip
