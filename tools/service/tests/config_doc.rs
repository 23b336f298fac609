//! docs/service.md names every key of the configuration, and no other.

#![allow(clippy::unwrap_used)] // a test

use spoc_service::Config;

#[test]
fn every_key_is_documented() {
    let text = std::fs::read_to_string("../../docs/service.md").unwrap();
    let arena = "[[arena]]\nname = \"a\"\nclasses = [{ slots = 1, slot = 1 }]\n";
    let printed = Config::parse(arena).unwrap().print();
    let mut table = String::new();
    let mut keys = Vec::new();
    for line in printed.lines() {
        if let Some(name) = line.strip_prefix('[') {
            table = format!("{}.", name.trim_matches(['[', ']']));
            if table == "arena.classes." {
                keys.push("arena.classes".to_owned());
            }
        } else if let Some((key, _)) = line.split_once(" = ").filter(|_| table != "arena.classes.") {
            keys.push(format!("{table}{key}"));
        }
    }
    assert!(keys.len() > 12, "{keys:?}");
    for key in &keys {
        assert!(text.contains(&format!("`{key}`")), "docs/service.md lacks {key}");
    }
    let rows = text.lines().filter(|line| line.starts_with("| `") && line.matches('|').count() == 5);
    for named in rows.flat_map(|row| row.split('|').nth(1).unwrap().split(',')) {
        let named = named.trim().trim_matches('`').to_owned();
        assert!(keys.contains(&named), "docs/service.md has {named}, which is no key");
    }
}
