// Files that are whole or absent: written under a temporary name, synced, renamed, the folder synced.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

namespace slip {

void write_text_durably(const std::string& path, const std::string& text);  // through path.partial
void rename_durably(const std::string& from, const std::string& to);
void sync_folder(const std::string& folder);
int64_t free_bytes(const std::string& path);  // on the file system of a file or folder; -1: unknown
// XXH3-64 of the content; `read` is called with the number of bytes of each piece.
uint64_t file_xxh3(const std::string& path, const std::function<void(int64_t)>& read = {});

}  // namespace slip
