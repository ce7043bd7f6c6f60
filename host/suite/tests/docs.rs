//! The documentation lists every case.

use std::path::Path;

use cofferdam_suite::cases;

const CASES_BEGIN: &str = "<!-- cases -->\n";
const CASES_END: &str = "<!-- end of cases -->";

fn cases_table() -> String {
    let mut table = String::from("| case | rule | requires | source |\n|---|---|---|---|\n");
    for case in cases() {
        let needs: Vec<_> = case.requirements.iter().map(ToString::to_string).collect();
        let (id, rule, needs, source) = (case.id, case.rule, needs.join(", "), case.source);
        table.push_str(&format!("| `{id}` | {rule} | {needs} | {source} |\n"));
    }
    table
}

#[test]
fn docs_list_every_case() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/backend-test.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (head, rest) = text.split_once(CASES_BEGIN).unwrap();
    let (found, tail) = rest.split_once(CASES_END).unwrap();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, format!("{head}{CASES_BEGIN}{}{CASES_END}{tail}", cases_table())).unwrap();
        return;
    }
    let expected = cases_table();
    let first_difference = found.lines().zip(expected.lines()).find(|(found, expected)| found != expected);
    assert!(
        found == expected,
        "run with UPDATE_DOCS=1 to update docs/backend-test.md; first difference {first_difference:?}"
    );
}
