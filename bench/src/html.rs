//! Text and anchors of the report, as HTML has them.

/// Returns the anchor of a workload on the page.
pub fn anchor(part: usize, workload: &str) -> String {
    format!("w{part}-{}", workload.replace('/', "-"))
}

/// Escapes text for HTML and its attributes.
pub fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            letter => safe.push(letter),
        }
    }
    safe
}
