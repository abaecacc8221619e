# Sentences of more than 30 words: in Markdown outside of code and tables, in Rust in comments.
function flush(  n, i, parts) {
    if (text != "") {
        gsub(/\([^()]*\)/, "", text); gsub(/`[^`]*`/, "x", text)
        n = split(text, parts, /[.!?:;]["')*`]* +/)
        for (i = 1; i <= n; i++) {
            if (split(parts[i], words, / +/) > 30) { print FILENAME ":" start ": " substr(parts[i], 1, 100) }
        }
    }
    text = ""
}
FNR == 1 { flush(); fenced = 0; rust = FILENAME ~ /\.rs$/ }
{
    line = $0
    if (rust) {
        if (line !~ /^ *\/\//) { flush(); next }
        sub(/^ *\/\/[\/!]? ?/, "", line)
    }
    if (line ~ /^ *```/) { flush(); fenced = !fenced; next }
    if (fenced || line ~ /^ *\|/ || line ~ /^ *#/ || line ~ /^ *$/ || line ~ /^    /) { flush(); next }
    if (line ~ /^ *([-*]|[0-9]+\.) /) flush()
    if (text == "") start = FNR
    text = text " " line
}
END { flush() }
