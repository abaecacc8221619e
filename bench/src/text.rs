//! Numbers as people read them.

/// Formats a time for people.
pub fn time_text(nanos: f64) -> String {
    match nanos {
        ..1e3 => format!("{nanos:.0} ns"),
        ..1e6 => format!("{:.2} us", nanos / 1e3),
        ..1e9 => format!("{:.2} ms", nanos / 1e6),
        _ => format!("{:.2} s", nanos / 1e9),
    }
}

/// Formats a size for people.
pub fn bytes_text(bytes: f64) -> String {
    match bytes {
        ..1e3 => format!("{bytes:.0} B"),
        ..1e6 => format!("{:.0} kB", bytes / 1e3),
        ..1e9 => format!("{:.1} MB", bytes / 1e6),
        _ => format!("{:.2} GB", bytes / 1e9),
    }
}

/// Formats a count with thousands separators.
pub fn count_text(count: f64) -> String {
    let digits = format!("{count:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a ratio with its significant digits.
pub fn ratio_text(ratio: f64) -> String {
    match ratio {
        ..0.1 => format!("{ratio:.4}"),
        ..10.0 => format!("{ratio:.2}"),
        _ => format!("{ratio:.0}"),
    }
}
