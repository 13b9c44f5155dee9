#!/bin/sh
# tools/check_api_docs.sh - each function of include/ is documented, and marked as stable or experimental.
#
# A function has a comment right before it, or after it on its last line, or follows such a function without an
# empty line in between (a group).  The comment of a HOTBED_MUST_USE function or of its group names its errors, or
# at least says whether the function is asynchronous or blocks; then only the general errors are possible (ARGUMENT
# for NULL, DEVICE).
set -eu
cd "$(dirname "$0")/.."
awk '
function report(text) { printf "%s:%d: %s\n", FILENAME, start, text; bad = 1 }
FNR == 1 { documented = errors = 0; comment = ""; in_comment = in_function = 0 }
in_comment { comment = comment " " $0; if (index($0, "*/")) in_comment = 0; next }
/^[ \t]*\/\*/ && !in_function {
    comment = $0; errors = 0
    if (!index($0, "*/")) in_comment = 1
    documented = 1
    next
}
/^[ \t]*$/ { documented = 0; comment = ""; next }
/^HOTBED_API/ { in_function = 1; start = FNR; text = "" }
in_function {
    text = text " " $0
    if (!index($0, ";")) next
    in_function = 0
    name = text
    sub(/\(.*/, "", name); sub(/.*[ *]/, "", name)
    if (index(text, "/*")) { if (!documented) comment = text; documented = 1 }
    if (text ~ /\/\*/ && text !~ /\*\//) in_comment = 1
    if (!documented)
        report(name " has no comment")
    else if (text ~ /HOTBED_MUST_USE/ && (comment " " text) !~ /Errors:|[Aa]sync|[Ss]ynchronous|[Nn]ever waits|without waiting/)
        report(name " does not say its errors, nor whether it is async or synchronous")
    functions++
    next
}
END {
    if (!functions) { print "no functions found in include/"; exit 1 }
    exit bad
}' include/hotbed/*.h
tools/api_calls.py
