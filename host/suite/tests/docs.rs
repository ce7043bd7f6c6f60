//! The document lists the cases that there are.

use std::path::Path;

use cofferdam_suite::cases;

const BEGIN: &str = "<!-- cases -->\n";
const END: &str = "<!-- end of cases -->";

fn table() -> String {
    let mut table = String::from("| case | rule | needs | from |\n|---|---|---|---|\n");
    for case in cases() {
        let needs: Vec<_> = case.needs.iter().map(ToString::to_string).collect();
        let (id, rule, needs, source) = (case.id, case.rule, needs.join(", "), case.source);
        table.push_str(&format!("| `{id}` | {rule} | {needs} | {source} |\n"));
    }
    table
}

#[test]
fn the_document_has_every_case() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/backend-test.md");
    let text = std::fs::read_to_string(&path).unwrap();
    let (head, rest) = text.split_once(BEGIN).unwrap();
    let (found, tail) = rest.split_once(END).unwrap();
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, format!("{head}{BEGIN}{}{END}{tail}", table())).unwrap();
        return;
    }
    let wanted = table();
    let wrong = found.lines().zip(wanted.lines()).find(|(found, wanted)| found != wanted);
    assert!(
        found == wanted,
        "run with UPDATE_DOCS=1 to write docs/backend-test.md anew; it begins to differ at {wrong:?}"
    );
}
