//! Patterns, as reads use them.

use super::*;

#[test]
fn a_regular_expression_cannot_end_the_group_around_it() {
    for text in ["{a)|(?:b}", "{a)|(b}", "{)(}"] {
        assert!(text.parse::<Pattern>().is_err(), "{text}");
    }
    assert!(!pattern("{(?m)^a$}").matches(b"a\nb"));
    assert!(!pattern("{a|b}").matches(b"ab"));
}

#[test]
fn patterns_do_not_read_past_their_paths() {
    let disk = SimDisk::new(1);
    let (_store, _trees, tree) = open(&disk);
    let names = ["", "a", "a*", "b", "ab", "\u{e9}"];
    let mut paths = Vec::new();
    for first in names {
        paths.push(first.to_string());
        for second in names {
            paths.push(format!("{first}/{second}"));
            paths.extend(names.map(|third| format!("{first}/{second}/{third}")));
        }
    }
    paths.retain(|path| !path.is_empty());
    tree.transact(|tree| paths.iter().try_for_each(|path| tree.put(path, "").map(drop)))
        .unwrap();
    let parts = ["**", "*", "a*", "a", r"a\*", "", "{a|b}", "{(?i)A.?}", "{.*}", "{}"];
    let mut texts: Vec<String> = parts.map(String::from).to_vec();
    for first in parts {
        texts.extend(parts.map(|second| format!("{first}/{second}")));
        texts.extend(parts.map(|second| format!("{first}/**/{second}")));
        texts.extend(parts.map(|second| format!("{first}/{second}/**")));
    }
    for text in texts {
        let pattern = pattern(&text);
        assert_eq!(pattern.to_string(), text);
        let expected = paths.iter().filter(|path| pattern.matches(path.as_bytes())).count() as u64;
        assert_eq!(tree.count(&pattern).unwrap(), expected, "{text}");
        let deleted = tree.transact(|tree| {
            let deleted = tree.delete_many(&pattern)?;
            Err::<(), _>(duramen_engine::Error::from(Reason::InvalidArgument(
                deleted.to_string(),
            )))
        });
        assert!(
            deleted.unwrap_err().to_string().contains(&expected.to_string()),
            "{text}"
        );
    }
}
