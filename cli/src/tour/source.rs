//! Where the tour's listings come from: its own source, taken into the binary as text.
//!
//! [`shown`] cuts out the statements that a `shown!` runs and compares them, white space and comments aside, with the
//! tokens that the compiler got, so a listing cannot differ from what runs. [`function`] cuts out a whole function.

/// The lines inside of the `shown! { ... }` that begins in a line (counted from 1).
pub fn shown(source: &str, line: u32, tokens: &str) -> String {
    let lines: Vec<&str> = source.lines().collect();
    let first = line as usize;
    let text = until_closed(&lines[first..], indent(lines[first - 1]));
    assert_eq!(squeezed(&text), squeezed(tokens), "the listing is not what runs");
    text
}

/// A function at the top level of a file, without what is before its `fn`.
pub fn function(source: &str, name: &str) -> String {
    let lines: Vec<&str> = source.lines().collect();
    let is_head = |line: &&str| line.contains(&format!("fn {name}(")) && indent(line) == 0;
    let first = lines.iter().position(is_head).expect("the function is in the file");
    let head = lines[first].trim_start_matches("pub ");
    let body: Vec<&str> = lines[first + 1..]
        .iter()
        .copied()
        .take_while(|line| *line != "}")
        .collect();
    format!("{head}\n{}\n}}", body.join("\n"))
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// The lines up to the one that closes a block of some indent, moved to the left.
fn until_closed(lines: &[&str], indent_of_block: usize) -> String {
    let is_inside = |line: &&&str| !(indent(line) == indent_of_block && line.trim_start() == "}");
    let inside: Vec<&str> = lines.iter().take_while(is_inside).copied().collect();
    let least = inside
        .iter()
        .filter(|line| !line.is_empty())
        .map(|line| indent(line))
        .min()
        .unwrap_or(0);
    let moved: Vec<&str> = inside.iter().map(|line| line.get(least..).unwrap_or("")).collect();
    moved.join("\n")
}

fn squeezed(code: &str) -> String {
    let without_comments = code.lines().map(|line| line.split("//").next().unwrap_or(""));
    without_comments
        .flat_map(str::chars)
        .filter(|character| !character.is_whitespace())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str =
        "pub fn two(a: u8) {\n    shown! { stage;\n        if a {\n            b(); // why\n        }\n    }\n}\n";

    #[test]
    fn a_listing_ends_where_its_block_ends() {
        assert_eq!(shown(SOURCE, 2, "if a { b(); }"), "if a {\n    b(); // why\n}");
    }

    #[test]
    #[should_panic(expected = "the listing is not what runs")]
    fn a_listing_that_drifted_is_refused() {
        shown(SOURCE, 2, "if a { c(); }");
    }

    #[test]
    fn a_function_is_cut_out_whole() {
        assert!(function(SOURCE, "two").starts_with("fn two(a: u8) {\n    shown!"));
        assert!(function(SOURCE, "two").ends_with("    }\n}"));
    }
}
