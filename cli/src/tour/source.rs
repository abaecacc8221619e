//! The source of the tour's listings: its own source code, included in the binary as text.
//!
//! [`shown`] cuts out the statements that a `shown!` runs. It compares them with the tokens that the compiler got,
//! ignoring white space and comments, so a listing cannot differ from what runs. [`function`] cuts out a whole
//! function.

/// Returns the lines inside the `shown! { ... }` that begins in `line` (counted from 1).
pub fn shown(source: &str, line: u32, tokens: &str) -> String {
    let lines: Vec<&str> = source.lines().collect();
    let first = line as usize;
    let text = until_closed(&lines[first..], indent(lines[first - 1]));
    assert_eq!(squeezed(&text), squeezed(tokens), "the listing is not what runs");
    text
}

/// Returns a function at the top level of a file, without anything before its `fn`.
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

/// Returns the lines before the closing brace of a block with this indentation, unindented.
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
