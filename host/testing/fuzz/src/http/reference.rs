//! A strict parser of HTTP/1.1 responses, for comparison with the host's.

/// The headers that the parser understands in a response whose body it reads.
const FRAMING_HEADERS: [&str; 5] =
    ["content-length", "transfer-encoding", "connection", "upgrade", "keep-alive"];

/// The response at the start of a server's bytes, after which the server closes the connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// A well-formed response with a body of known length.
    Complete {
        /// The status code.
        status: u16,
        /// The body, decoded.
        body: Vec<u8>,
        /// Number of bytes after the response.
        surplus: usize,
    },
    /// The start of a well-formed response with a body of known length.
    Cut,
    /// Anything else: the parser has no opinion.
    Other,
}

impl Framing {
    /// Parses what a server sends in response to a request of this method.
    pub(super) fn of(bytes: &[u8], method: &str) -> Self {
        let Some((status, headers, rest)) = parse_head(bytes) else { return Self::Other };
        let values = |name: &str| {
            let named = headers.iter().filter(|(found, _)| found.eq_ignore_ascii_case(name));
            named.map(|(_, value)| *value).collect::<Vec<_>>()
        };
        // Interim responses, and those that end HTTP on the connection.
        if !(200..600).contains(&status) {
            return Self::Other;
        }
        let complete =
            |body: &[u8], rest: &[u8]| Self::Complete { status, body: body.to_vec(), surplus: rest.len() };
        let (lengths, codings) = (values("content-length"), values("transfer-encoding"));
        match (lengths.as_slice(), codings.as_slice()) {
            ([] | [_], []) if method == "HEAD" || matches!(status, 204 | 304) => match lengths.as_slice() {
                [length] if parse_number(length, 10).is_none() => Self::Other,
                _ => complete(&[], rest),
            },
            ([length], []) => {
                let Some(length) = parse_number(length, 10) else { return Self::Other };
                rest.split_at_checked(length).map_or(Self::Cut, |(body, rest)| complete(body, rest))
            }
            ([], ["chunked"]) if method != "HEAD" && !matches!(status, 204 | 304) => {
                let mut body = Vec::new();
                match parse_chunks(rest, &mut body) {
                    Chunks::Complete(rest) => complete(&body, rest),
                    Chunks::Cut => Self::Cut,
                    Chunks::Other => Self::Other,
                }
            }
            _ => Self::Other,
        }
    }
}

type Head<'a> = (u16, Vec<(&'a str, &'a str)>, &'a [u8]);

/// Parses a small head of plain ASCII, and returns the status, the headers and the rest.
fn parse_head(bytes: &[u8]) -> Option<Head<'_>> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let (head, rest) = bytes.split_at_checked(end)?;
    let head = std::str::from_utf8(head).ok().filter(|head| head.len() < 4_096)?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.1 ")?;
    let (status, reason) = status.split_once(' ')?;
    let is_text = |text: &str| text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if status.len() != 3 || !is_text(reason) {
        return None;
    }
    let status = parse_number(status, 10)?.try_into().ok()?;
    let mut headers = Vec::new();
    for line in lines {
        let (name, value) = line.split_once(": ")?;
        let is_name =
            !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if !is_name || !is_text(value) || value.trim() != value {
            return None;
        }
        headers.push((name, value));
    }
    // More headers than the host accepts are no well-formed head.
    let is_odd =
        |(name, _): &(&str, &str)| FRAMING_HEADERS.iter().skip(2).any(|odd| name.eq_ignore_ascii_case(odd));
    (headers.len() <= 64 && !headers.iter().any(is_odd)).then_some(())?;
    Some((status, headers, rest.get(4..)?))
}

enum Chunks<'a> {
    Complete(&'a [u8]),
    Cut,
    Other,
}

/// Decodes chunks without extensions and trailers.
fn parse_chunks<'a>(mut bytes: &'a [u8], body: &mut Vec<u8>) -> Chunks<'a> {
    loop {
        let Some(end) = bytes.windows(2).position(|window| window == b"\r\n") else {
            let is_start = bytes.len() <= 4 && bytes.iter().all(u8::is_ascii_hexdigit);
            return if is_start { Chunks::Cut } else { Chunks::Other };
        };
        let (size, rest) = bytes.split_at(end);
        let size = std::str::from_utf8(size).ok().and_then(|size| parse_number(size, 16));
        let (Some(size), Some(rest)) = (size, rest.get(2..)) else { return Chunks::Other };
        let Some((data, rest)) = rest.split_at_checked(size) else { return Chunks::Cut };
        body.extend_from_slice(data);
        match rest.strip_prefix(b"\r\n") {
            Some(rest) if size == 0 => return Chunks::Complete(rest),
            Some(rest) => bytes = rest,
            None if rest.is_empty() || rest == b"\r" => return Chunks::Cut,
            None => return Chunks::Other,
        }
    }
}

/// Parses a small number without a sign.
fn parse_number(text: &str, radix: u32) -> Option<usize> {
    let is_number = (1..=6).contains(&text.len()) && text.chars().all(|c| c.is_digit(radix));
    is_number.then(|| usize::from_str_radix(text, radix).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_are_divided_by_their_framing() {
        let complete = |body: &[u8], surplus| Framing::Complete { status: 200, body: body.to_vec(), surplus };
        #[rustfmt::skip] // one row a case
        let table = [
            ("GET",  "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nabc",                complete(b"ab", 1)),
            ("GET",  "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nabc",                Framing::Cut),
            ("HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n",                   complete(b"", 0)),
            ("GET",  "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", complete(b"ab", 0)),
            ("GET",  "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n",     Framing::Cut),
            ("GET",  "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2;x\r\nab\r\n",        Framing::Other),
            ("GET",  "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",       Framing::Other),
            ("GET",  "HTTP/1.1 200 OK\r\n\r\nuntil the end",                           Framing::Other),
            ("GET",  "HTTP/1.1 200 OK\r\ncontent-length: 1",                           Framing::Other),
        ];
        for (method, bytes, expected) in table {
            assert_eq!(Framing::of(bytes.as_bytes(), method), expected, "{bytes:?}");
        }
    }
}
