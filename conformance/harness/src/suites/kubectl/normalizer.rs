//! Normalization of kubectl's output. Hides what differs between two runs (uids, times, ages, resource
//! versions, ports, names of temporary files, log lines about short watches), and Go values in messages,
//! which the embedded API does not have.

use std::path::Path;

use anyhow::Result;
use regex::Regex;

/// Regular expressions, and the replacements of their matches. They are applied in this order.
const REPLACEMENTS: &[(&str, &str)] = &[
    ("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<uid>"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", "<time>"),
    // Headers of `diff -u`.
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+ [+-]\d{4}", "<time>"),
    // Times of `kubectl describe`.
    (r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d [+-]\d{4}", "<time>"),
    // client-go logs a watch that lasted less than a second, which depends on the speed of the machine.
    (r"(?m)^[IWEF]\d{4} [^\n]* reflector\.go:\d+\] [^\n]*watch[^\n]*\n?", ""),
    // Log lines of kubectl.
    (r"(?m)^([IWEF])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ ", "$1<time> "),
    (r#"(resourceVersion"?: "|current: )\d+"#, "$1<version>"),
    (r"(Resource Version: +)\d+", "$1<version>"),
    (r"127\.0\.0\.1:\d+", "<server>"),
    (r"\b(LIVE|MERGED|kubectl-edit)-\d+", "$1-<n>"),
    // Go values in messages, possibly truncated, and Go diffs after messages: the embedded API has no Go
    // types.
    (r#"Invalid value: "\{.*(\}"|…): "#, r#"Invalid value: "{…}": "#),
    (r"(?s)(Forbidden: [^\n]*)\n@@.*", "$1\n"),
    // Ages up to some minutes, with the padding of the column.
    (r"\b(\dm\d{1,2}s|1\dm|[2-9]m|(1[01])?\ds|\d{2}s)\b *", "<age> "),
    (r"\bAGE +", "AGE "),
];

/// Normalizes the output of one kubectl.
pub(super) struct KubectlNormalizer {
    home: String,
    rules: Vec<(Regex, &'static str)>,
}

impl KubectlNormalizer {
    /// `home` is the directory of kubectl's temporary files.
    pub(super) fn new(home: &Path) -> Result<Self> {
        let rules = REPLACEMENTS
            .iter()
            .map(|(pattern, replacement)| Ok((Regex::new(pattern)?, *replacement)))
            .collect::<Result<_>>()?;
        Ok(Self { home: home.display().to_string(), rules })
    }

    pub(super) fn normalize(&self, text: &str) -> String {
        let text = text.replace(&self.home, "<home>");
        self.rules
            .iter()
            .fold(text, |text, (pattern, replacement)| pattern.replace_all(&text, *replacement).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_volatile_text_is_replaced() {
        let normalizer = KubectlNormalizer::new(Path::new("/run/a")).unwrap();
        for (text, expected) in [
            ("uid: 8b2a2191-0a12-4f6c-bd34-65586cb15ff7", "uid: <uid>"),
            ("at 2026-11-21T20:31:00Z", "at <time>"),
            ("StartTime: Sat, 21 Nov 2026 20:31:00 +0000", "StartTime: <time>"),
            ("W1121 20:31:02.382020   13979 diff.go:723] x", "W<time> diff.go:723] x"),
            (
                "I1121 20:31:02.382020   13979 reflector.go:664] \"Warning: watch ended with error\" \
                 err=\"very short watch\"\nerror: x",
                "error: x",
            ),
            (
                "+++ /run/a/LIVE-415/v1.x\t2026-11-21 20:31:00.900618001 +0000",
                "+++ <home>/LIVE-<n>/v1.x\t<time>",
            ),
            ("resourceVersion: \"554\"", "resourceVersion: \"<version>\""),
            ("\"resourceVersion\": \"554\"", "\"resourceVersion\": \"<version>\""),
            ("https://127.0.0.1:4711", "https://<server>"),
            ("a   6s    b", "a   <age> b"),
            ("a   119s  b", "a   <age> b"),
            ("a   2m3s  b", "a   <age> b"),
            ("a   12m   b", "a   <age> b"),
            ("AGE    MODE", "AGE MODE"),
            ("patch: Invalid value: \"{\\\"a\\\":1}\": wrong", "patch: Invalid value: \"{…}\": wrong"),
            ("spec: Forbidden: immutable\n@@ -1,6 +1,6 @@\n {\n\n", "spec: Forbidden: immutable\n"),
            // Not ages.
            ("cpu: 100m, memory: 64Mi, for 300s", "cpu: 100m, memory: 64Mi, for 300s"),
        ] {
            assert_eq!(normalizer.normalize(text), expected);
        }
    }
}
