//! Output of tools.

use cofferdam_node::{DeviceContent, FileId, fuzzing};

use crate::message::assert_printable;

/// Most characters of a tool's standard error in a message.
const MAX_STDERR_CHARS: usize = 512;

pub(super) fn blkid(content: &[u8]) {
    let output = String::from_utf8_lossy(content);
    let has_line = |line: &str| output.lines().any(|found| found == line);
    let content = fuzzing::signatures(&output);
    let may_be_formatted = matches!(content, DeviceContent::Blank | DeviceContent::Unknown);
    assert!(!may_be_formatted, "a device with a signature may be formatted");
    match content {
        DeviceContent::Filesystem(name) => {
            assert!(has_line("USAGE=filesystem") && has_line(&format!("TYPE={name}")), "{name:?}");
            assert!(!output.lines().any(|line| line.starts_with("PTTYPE=")), "{name:?}");
        }
        DeviceContent::Other(description) => assert_printable(&description, 100 + 10 * output.len()),
        DeviceContent::Blank | DeviceContent::Unknown => {}
    }
    let with_table = fuzzing::signatures(&format!("{output}\nPTTYPE=dos\n"));
    assert!(matches!(with_table, DeviceContent::Other(_)), "{with_table:?}");
}

pub(super) fn losetup(content: &[u8]) {
    let output = String::from_utf8_lossy(content);
    let file = FileId { device: (8, 1), inode: 12 };
    match fuzzing::loop_devices(&output, file) {
        Ok(found) => {
            let list = |entries: Vec<String>| format!(r#"{{"loopdevices":[{}]}}"#, entries.join(","));
            let new_form = |(path, read_only): &(String, bool)| {
                format!(r#"{{"name":"{}","back-ino":12,"back-maj:min":"8:1","ro":{read_only}}}"#, json(path))
            };
            let old_form = |(path, read_only): &(String, bool)| {
                let (path, read_only) = (json(path), u8::from(*read_only));
                format!(r#"{{"name":"{path}","back-ino":"  12","back-maj:min":" 8:1","ro":"{read_only}"}}"#)
            };
            for entries in [found.iter().map(new_form).collect(), found.iter().map(old_form).collect()] {
                assert_eq!(fuzzing::loop_devices(&list(entries), file).as_ref(), Ok(&found));
            }
            // A list has nothing of another file.
            let other = FileId { inode: 13, ..file };
            let listed = list(found.iter().map(new_form).collect());
            assert_eq!(fuzzing::loop_devices(&listed, other), Ok(Vec::new()));
        }
        Err(error) => assert_printable(&error.to_string(), 200),
    }
}

/// The inner text of a JSON string.
fn json(text: &str) -> String {
    let escape = |c: char| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    };
    text.chars().map(escape).collect()
}

pub(super) fn stderr(content: &[u8]) {
    let end = fuzzing::end_of_stderr(content);
    assert!(end.chars().count() <= MAX_STDERR_CHARS);
    let words: Vec<&str> = end.split_whitespace().collect();
    assert_eq!(end.trim(), words.join(" "), "more than one line");
    assert_eq!(fuzzing::end_of_stderr(end.as_bytes()).trim(), end.trim());
    let text = String::from_utf8_lossy(content);
    assert_eq!(words.is_empty(), text.trim().is_empty());
    let is_at_the_end = |(found, word): (&str, &str)| found == word;
    assert!(text.split_whitespace().rev().zip(words.iter().skip(1).rev().copied()).all(is_at_the_end));
}
