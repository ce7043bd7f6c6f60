//! The set of requests and its grammar.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};

/// The files of the set in the order in which their requests are sent: the name without `.txt`, and the text.
/// Only the last file has requests before which the API server's history is compacted.
pub const REQUEST_FILES: [(&str, &str); 9] = [
    ("apply", include_str!("../requests/apply.txt")),
    ("claims", include_str!("../requests/claims.txt")),
    ("core", include_str!("../requests/core.txt")),
    ("custom", include_str!("../requests/custom.txt")),
    ("lists", include_str!("../requests/lists.txt")),
    ("snapshots", include_str!("../requests/snapshots.txt")),
    ("storage", include_str!("../requests/storage.txt")),
    ("volumes", include_str!("../requests/volumes.txt")),
    ("expiry", include_str!("../requests/expiry.txt")),
];

/// One request of a file.
#[derive(Debug, Clone, Default)]
pub struct ScriptRequest {
    /// Line number in the file, from 1.
    pub line: usize,
    /// The HTTP method.
    pub method: String,
    /// Path and query, with variables `$NAME`.
    pub path: String,
    /// The `Content-Type` of the body: that of the request's line, or else `application/json` if there is a
    /// body. If `None`, the header is not sent.
    pub content_type: Option<String>,
    /// The `Accept` header.
    pub accept: String,
    /// The `User-Agent` header.
    pub user_agent: String,
    /// A variable that the response sets for later requests, and the JSON pointer of its value in the
    /// response body. The value is empty if the body has no string there. If `None`, no variable is set.
    pub capture: Option<(String, String)>,
    /// True to compact the API server's history before the request: older resource versions and continue
    /// tokens then expire.
    pub after_compaction: bool,
    /// True to repeat the request while the response is 403, for at most 30 s: an admission plugin of
    /// kube-apiserver finds an object of an earlier request only once the plugin's informer has the object.
    pub retry_forbidden: bool,
    /// Id of the deviation that explains why the embedded API's response differs from that of kube-apiserver.
    /// If `None`, the responses have to be equal.
    pub deviation: Option<String>,
    /// The body, with variables `$NAME`. Empty if the request has no body.
    pub body: String,
}

/// A parsed file of requests.
#[derive(Debug, Clone, Default)]
pub struct RequestScript {
    /// Variables and their initial values. Requests capture further ones.
    pub variables: BTreeMap<String, String>,
    /// The requests in order.
    pub requests: Vec<ScriptRequest>,
}

const JSON: &str = "application/json";

/// Parses a file: `let NAME = value` lines, and requests (a line with method, path and words, then the body's
/// lines) with blank lines between them. Lines outside of requests that start with `#` are comments.
///
/// Words: a patch type (`merge`, `strategic`, `jsonpatch`, `apply`), `yaml` or a media type for the body;
/// `table`, `partial`, `partials` or `accept=…` for the response; `agent=…`, `as NAME=/pointer`,
/// `after-compaction`, `retry-forbidden`, `~deviation`.
///
/// # Errors
/// If a line is malformed.
pub fn parse(text: &str) -> Result<RequestScript> {
    let mut script = RequestScript::default();
    let mut current: Option<ScriptRequest> = None;
    for (index, line) in text.lines().enumerate() {
        match &mut current {
            Some(request) if line.is_empty() => {
                set_default_content_type(request);
                script.requests.extend(current.take());
            }
            Some(request) => {
                if !request.body.is_empty() {
                    request.body.push('\n');
                }
                request.body.push_str(line);
            }
            None if line.is_empty() || line.starts_with('#') => {}
            None => {
                if let Some(variable) = line.strip_prefix("let ") {
                    let (name, value) = variable.split_once(" = ").context("a variable needs ` = `")?;
                    script.variables.insert(name.to_owned(), value.to_owned());
                } else {
                    current = Some(
                        parse_request_line(index + 1, line)
                            .with_context(|| format!("line {}: {line}", index + 1))?,
                    );
                }
            }
        }
    }
    if let Some(mut request) = current {
        set_default_content_type(&mut request);
        script.requests.push(request);
    }
    Ok(script)
}

fn set_default_content_type(request: &mut ScriptRequest) {
    if !request.body.is_empty() && request.content_type.is_none() {
        request.content_type = Some(JSON.to_owned());
    }
}

fn parse_request_line(line: usize, text: &str) -> Result<ScriptRequest> {
    let mut words = text.split(' ');
    let method = words.next().context("a method was expected")?.to_owned();
    if !matches!(method.as_str(), "GET" | "POST" | "PUT" | "PATCH" | "DELETE") {
        bail!("{method} is no method: expected GET, POST, PUT, PATCH or DELETE");
    }
    let path = words.next().context("a path was expected")?.to_owned();
    let mut request = ScriptRequest {
        line,
        method,
        path,
        accept: JSON.to_owned(),
        user_agent: "differential/1".to_owned(),
        ..ScriptRequest::default()
    };
    while let Some(word) = words.next() {
        let patch = match word {
            "merge" => Some("application/merge-patch+json"),
            "strategic" => Some("application/strategic-merge-patch+json"),
            "jsonpatch" => Some("application/json-patch+json"),
            "apply" => Some("application/apply-patch+yaml"),
            "yaml" => Some("application/yaml"),
            _ => None,
        };
        if let Some(media) = patch {
            request.content_type = Some(media.to_owned());
        } else if let Some(id) = word.strip_prefix('~') {
            request.deviation = Some(id.to_owned());
        } else if let Some(agent) = word.strip_prefix("agent=") {
            agent.clone_into(&mut request.user_agent);
        } else if let Some(accept) = word.strip_prefix("accept=") {
            accept.clone_into(&mut request.accept);
        } else if let Some(shape) = representation(word) {
            request.accept = format!("{JSON};as={shape};v=v1;g=meta.k8s.io");
        } else if word == "after-compaction" {
            request.after_compaction = true;
        } else if word == "retry-forbidden" {
            request.retry_forbidden = true;
        } else if word == "as" {
            let (name, pointer) = words
                .next()
                .and_then(|word| word.split_once('='))
                .context("`as NAME=/pointer` was expected")?;
            request.capture = Some((name.to_owned(), pointer.to_owned()));
        } else if word.contains('/') {
            request.content_type = Some(word.to_owned());
        } else {
            bail!("{word} is no word of a request");
        }
    }
    Ok(request)
}

fn representation(word: &str) -> Option<&'static str> {
    match word {
        "table" => Some("Table"),
        "partial" => Some("PartialObjectMetadata"),
        "partials" => Some("PartialObjectMetadataList"),
        _ => None,
    }
}

/// Replaces variables `$NAME` by their values, and variables in these values by theirs.
#[must_use]
pub fn substitute(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut substituted = text.to_owned();
    // Longer names first, so that `$NS` is not taken for `$N`; twice, as values may name variables.
    let mut names: Vec<&String> = variables.keys().collect();
    names.sort_by_key(|name| std::cmp::Reverse(name.len()));
    for _ in 0..2 {
        for name in &names {
            if let Some(value) = variables.get(*name) {
                substituted = substituted.replace(&format!("${name}"), value);
            }
        }
    }
    substituted
}

#[cfg(test)]
mod tests {
    use super::{REQUEST_FILES, parse, substitute};
    use crate::deviations::DEVIATIONS;

    #[test]
    fn request_set_is_large_and_its_deviations_exist() {
        let mut count = 0;
        for (name, text) in REQUEST_FILES {
            let script = parse(text).unwrap();
            count += script.requests.len();
            for request in script.requests {
                if let Some(id) = request.deviation {
                    assert!(DEVIATIONS.iter().any(|one| one.id == id), "{name}:{}: {id}", request.line);
                }
            }
        }
        assert!(count >= 700, "{count}");
    }

    #[test]
    fn request_lines_and_bodies_are_parsed() {
        let script = parse(
            "# c\nlet A = /a\n\nPATCH $A/b merge as X=/y ~z agent=me/1\n{\n}\n\nGET $A table \
             after-compaction retry-forbidden\n",
        )
        .unwrap();
        let [patch, get] = script.requests.as_slice() else { panic!("{script:?}") };
        assert_eq!((patch.line, patch.body.as_str(), patch.user_agent.as_str()), (4, "{\n}", "me/1"));
        assert_eq!(patch.content_type.as_deref(), Some("application/merge-patch+json"));
        assert_eq!(patch.capture, Some(("X".to_owned(), "/y".to_owned())));
        assert_eq!(patch.deviation.as_deref(), Some("z"));
        assert_eq!(substitute(&get.path, &script.variables), "/a");
        assert!(get.accept.contains("as=Table"));
        assert!(get.after_compaction && !patch.after_compaction);
        assert!(get.retry_forbidden && !patch.retry_forbidden);
        for wrong in ["JUMP /a", "GET /a nonsense", "GET /a as x"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
