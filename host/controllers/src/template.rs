//! Templates with the syntax of Go's `os.Expand`: `${token}` and `$token`.

use std::collections::BTreeSet;

/// The tokens of a template that have no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnknownTokens(pub(crate) BTreeSet<String>);

/// A part of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part<'a> {
    Text(&'a str),
    Token(&'a str),
}

/// Replaces the tokens of a template by their values.
///
/// # Errors
/// [`UnknownTokens`] if `value_of` returns `None` for a token.
pub(crate) fn expand<'a>(
    template: &str,
    value_of: impl Fn(&str) -> Option<&'a str>,
) -> Result<String, UnknownTokens> {
    let (mut expanded, mut unknown) = (String::with_capacity(template.len()), BTreeSet::new());
    for part in parts(template) {
        match part {
            Part::Text(text) => expanded.push_str(text),
            Part::Token(token) => match value_of(token) {
                Some(value) => expanded.push_str(value),
                None => {
                    unknown.insert(token.to_owned());
                }
            },
        }
    }
    if unknown.is_empty() { Ok(expanded) } else { Err(UnknownTokens(unknown)) }
}

/// The tokens of a template, in order.
pub(crate) fn tokens(template: &str) -> impl Iterator<Item = &str> {
    parts(template).into_iter().filter_map(|part| match part {
        Part::Token(token) => Some(token),
        Part::Text(_) => None,
    })
}

fn parts(template: &str) -> Vec<Part<'_>> {
    let (mut parts, mut rest) = (Vec::new(), template);
    while let Some((text, after)) = rest.split_once('$') {
        if after.is_empty() {
            // A dollar sign at the end is text.
            break;
        }
        parts.push(Part::Text(text));
        let (token, length) = token_at_start(after);
        match (token, length) {
            // A dollar sign without a token is text.
            ("", 0) => parts.push(Part::Text("$")),
            // Go drops `${}`, and `${` without a closing brace.
            ("", _) => {}
            (token, _) => parts.push(Part::Token(token)),
        }
        rest = after.get(length..).unwrap_or_default();
    }
    parts.push(Part::Text(rest));
    parts
}

/// Returns the token that a text after a dollar sign begins with, and its length with braces in bytes.
/// Source: Go's `getShellName`.
fn token_at_start(text: &str) -> (&str, usize) {
    if let Some(inner) = text.strip_prefix('{') {
        return match inner.split_once('}') {
            Some((token, _)) => (token, token.len() + "{}".len()),
            None => ("", "{".len()),
        };
    }
    let is_special = |c: char| c.is_ascii_digit() || matches!(c, '*' | '#' | '$' | '@' | '!' | '?' | '-');
    let length = match text.starts_with(is_special) {
        true => 1,
        false => text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len()),
    };
    (text.get(..length).unwrap_or_default(), length)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected results are those of Go 1.26's `os.Expand`, with the values 1, 2 and 3 of `a`, `b.c` and
    /// `é`.
    #[test]
    fn templates_are_expanded_like_gos_os_expand() {
        #[rustfmt::skip] // one row a template
        let table = [
            ("",              Ok("")),
            ("text",          Ok("text")),
            ("${a}",          Ok("1")),
            ("$a",            Ok("1")),
            ("x-${a}-y",      Ok("x-1-y")),
            ("$a$a${a}",      Ok("111")),
            ("$a-b",          Ok("1-b")),
            ("$a.c",          Ok("1.c")),
            ("${b.c}",        Ok("2")),
            ("${é}",          Ok("3")),
            ("$",             Ok("$")),
            ("a$",            Ok("a$")),
            ("$.a",           Ok("$.a")),
            ("$ ",            Ok("$ ")),
            ("${}",           Ok("")),
            ("x${}y",         Ok("xy")),
            ("${a",           Ok("a")),
            ("x${a.b",        Ok("xa.b")),
            ("$é",            Ok("$é")),
            ("$b.c",          Err(vec!["b"])),
            ("$ab",           Err(vec!["ab"])),
            ("$a_",           Err(vec!["a_"])),
            ("${a }",         Err(vec!["a "])),
            ("${${a}}",       Err(vec!["${a"])),
            ("$$a",           Err(vec!["$"])),
            ("$1a",           Err(vec!["1"])),
            ("${*}",          Err(vec!["*"])),
            ("${z} $y $a $y", Err(vec!["y", "z"])),
        ];
        let value_of = |token: &str| match token {
            "a" => Some("1"),
            "b.c" => Some("2"),
            "é" => Some("3"),
            _ => None,
        };
        for (template, expected) in table {
            let expected = expected
                .map(str::to_owned)
                .map_err(|tokens| UnknownTokens(tokens.into_iter().map(str::to_owned).collect()));
            assert_eq!(expand(template, value_of), expected, "{template:?}");
        }
    }

    #[test]
    fn tokens_are_found_in_order() {
        let found: Vec<_> = tokens("${pv.name}-$a-${pvc.annotations['x/y']}$").collect();
        assert_eq!(found, ["pv.name", "a", "pvc.annotations['x/y']"]);
    }
}
