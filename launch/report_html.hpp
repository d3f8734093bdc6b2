#pragma once

namespace slip {

extern const char* const kReportHtml;  // launch/report.html

}  // namespace slip
