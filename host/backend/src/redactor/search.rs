//! Search of a text for a secret, also in its usual encodings.

use std::{borrow::Cow, iter, ops::Range};

use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use cofferdam_domain::text::is_control_or_format;
use memchr::memmem::Finder;
use zeroize::Zeroizing;

/// Minimum length in bytes of a secret that is searched for in hexadecimal and Base64. The encoded form of a
/// shorter one occurs by chance.
pub(super) const MIN_ENCODED_BYTES: usize = 4;

/// Largest ratio of an encoded form's length to the length of the secret: `\u0001` has 6 bytes for one.
pub(super) const MAX_EXPANSION: usize = 6;

/// A text, prepared for the search. Building it takes time and memory in proportion to the text, and so does
/// the search for one secret.
pub(super) struct SearchableText<'a> {
    texts: Vec<DecodedText<'a>>,
}

/// The text as it is, or after percent-encoding or escapes were undone.
struct DecodedText<'a> {
    plain: MappedBytes<'a>,
    /// ASCII letters in lower case. Has the offsets of `plain`.
    lower_case: Vec<u8>,
    /// The standard alphabet of Base64 in place of the one for URLs, and no line breaks.
    base64: MappedBytes<'a>,
}

/// Bytes that were derived from a text.
struct MappedBytes<'a> {
    bytes: Cow<'a, [u8]>,
    /// The offset in the text at which each byte starts, and the offset of the end. `None` if the bytes have
    /// the offsets of the text.
    offsets: Option<Vec<usize>>,
}

impl<'a> SearchableText<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let bytes = text.as_bytes();
        let mut plain = vec![MappedBytes { bytes: Cow::Borrowed(bytes), offsets: None }];
        if bytes.contains(&b'%') {
            plain.push(MappedBytes::decoded(bytes, percent_decoded));
        }
        // Forms encode a blank as a plus sign.
        if bytes.contains(&b'+') {
            plain.push(MappedBytes::decoded(bytes, |rest| match rest {
                [b'+', ..] => Some((Decoded::Byte(b' '), 1)),
                _ => percent_decoded(rest),
            }));
        }
        if bytes.contains(&b'\\') {
            plain.push(MappedBytes::decoded(bytes, unescaped));
        }
        // `printable`, which follows the redaction, makes blanks of these characters.
        if text.chars().any(is_control_or_format) {
            plain.push(MappedBytes::decoded(bytes, printable_blank));
        }
        Self { texts: plain.into_iter().map(DecodedText::new).collect() }
    }

    /// The ranges of the text that contain a secret as text: as it is, percent-encoded, escaped as in JSON and
    /// in the output of `Debug`, or with spaces in place of its control and format characters, as a guest
    /// writes a text on one line.
    pub(super) fn plain(&self, secret: &str) -> Vec<Range<usize>> {
        let one_line = secret.chars().any(is_control_or_format).then(|| {
            let spaced = secret.chars().map(|c| if is_control_or_format(c) { ' ' } else { c });
            Zeroizing::new(spaced.collect::<String>())
        });
        let one_line = one_line.as_deref().map(|text| text.trim()).filter(|text| !text.is_empty());
        let needles = std::iter::once(secret).chain(one_line);
        let ranges = needles.flat_map(|needle| {
            self.texts.iter().flat_map(|text| {
                occurrences(&text.plain.bytes, needle.as_bytes()).map(|range| text.plain.range(range))
            })
        });
        ranges.collect()
    }

    /// The ranges of the text that contain a secret of at least [`MIN_ENCODED_BYTES`] in hexadecimal or
    /// Base64, alone or as a part of encoded data.
    pub(super) fn encoded<'b>(&'b self, secret: &'b str) -> impl Iterator<Item = Range<usize>> + 'b {
        let has_room = |text: &&DecodedText<'_>| {
            secret.len() >= MIN_ENCODED_BYTES && secret.len() < text.plain.bytes.len()
        };
        let texts = self.texts.iter().filter(has_room);
        texts.flat_map(|text| text.hexadecimal(secret).into_iter().chain(text.base64(secret)))
    }
}

impl<'a> DecodedText<'a> {
    fn new(plain: MappedBytes<'a>) -> Self {
        let is_line_break = |byte: &u8| matches!(byte, b'\r' | b'\n');
        let standard = |byte: u8| match byte {
            b'-' => b'+',
            b'_' => b'/',
            other => other,
        };
        let kept = || plain.bytes.iter().enumerate().filter(|(_, byte)| !is_line_break(byte));
        let has_breaks = plain.bytes.iter().any(is_line_break);
        let offsets = (has_breaks || plain.offsets.is_some()).then(|| {
            let end = plain.range(plain.bytes.len()..plain.bytes.len()).end;
            kept().map(|(at, _)| plain.range(at..at).start).chain([end]).collect()
        });
        let base64 =
            MappedBytes { bytes: Cow::Owned(kept().map(|(_, byte)| standard(*byte)).collect()), offsets };
        Self { lower_case: plain.bytes.to_ascii_lowercase(), base64, plain }
    }

    fn hexadecimal(&self, secret: &str) -> Vec<Range<usize>> {
        let digits: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
        let digits = Zeroizing::new(digits);
        occurrences(&self.lower_case, digits.as_bytes()).map(|range| self.plain.range(range)).collect()
    }

    /// Encoded data may have 0, 1 or 2 bytes of a group before the secret. The letters that have bits of the
    /// secret alone are searched for, and those with bits of a neighbour are added to what was found.
    fn base64(&self, secret: &str) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        for bytes_before in 0..3_usize {
            let mut data = Zeroizing::new(vec![0; bytes_before]);
            data.extend_from_slice(secret.as_bytes());
            let encoded = Zeroizing::new(STANDARD_NO_PAD.encode(&*data));
            let bits = data.len() * 8;
            let Some(core) = encoded.as_bytes().get((bytes_before * 8).div_ceil(6)..bits / 6) else {
                continue;
            };
            let is_letter = |at: usize| {
                self.base64
                    .bytes
                    .get(at)
                    .is_some_and(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/'))
            };
            for Range { mut start, mut end } in occurrences(&self.base64.bytes, core) {
                if bytes_before > 0 && start > 0 && is_letter(start - 1) {
                    start -= 1;
                }
                if bits % 6 != 0 && is_letter(end) {
                    end += 1;
                }
                found.push(self.base64.range(start..end));
            }
        }
        found
    }
}

/// A unit of encoded text after its encoding was undone.
enum Decoded {
    Byte(u8),
    Char(char),
}

impl MappedBytes<'_> {
    /// Undoes an encoding. `decode` returns the unit with which its argument starts, and its length there;
    /// `None` for a byte that stands for itself.
    fn decoded(text: &[u8], decode: impl Fn(&[u8]) -> Option<(Decoded, usize)>) -> Self {
        let mut bytes = Vec::with_capacity(text.len());
        let mut offsets = Vec::with_capacity(text.len());
        let mut at = 0;
        while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
            let (decoded, length) = match decode(rest) {
                Some(unit) => unit,
                None => (Decoded::Byte(rest.first().copied().unwrap_or_default()), 1),
            };
            match decoded {
                Decoded::Byte(byte) => bytes.push(byte),
                Decoded::Char(char) => bytes.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes()),
            }
            offsets.resize(bytes.len(), at);
            at += length;
        }
        offsets.push(text.len());
        Self { bytes: Cow::Owned(bytes), offsets: Some(offsets) }
    }

    /// The range of the text from which a range of bytes was derived.
    fn range(&self, range: Range<usize>) -> Range<usize> {
        let Some(offsets) = &self.offsets else { return range };
        let offset = |at: usize| offsets.get(at).copied().unwrap_or_default();
        offset(range.start)..offset(range.end)
    }
}

/// Every occurrence, also where they overlap. An empty needle has none.
fn occurrences<'a>(haystack: &'a [u8], needle: &'a [u8]) -> impl Iterator<Item = Range<usize>> + 'a {
    let is_possible = !needle.is_empty() && needle.len() <= haystack.len();
    let finder = is_possible.then(|| Finder::new(needle));
    let mut from = 0;
    iter::from_fn(move || {
        let at = from + finder.as_ref()?.find(haystack.get(from..)?)?;
        from = at + 1;
        Some(at..at + needle.len())
    })
}

/// Replaces a control or format character with a blank.
fn printable_blank(rest: &[u8]) -> Option<(Decoded, usize)> {
    let start = rest.get(..rest.len().min(char::MAX_LEN_UTF8))?;
    let c = start.utf8_chunks().next()?.valid().chars().next()?;
    is_control_or_format(c).then_some((Decoded::Byte(b' '), c.len_utf8()))
}

/// Decodes `%41`.
fn percent_decoded(rest: &[u8]) -> Option<(Decoded, usize)> {
    let [b'%', high, low, ..] = rest else { return None };
    hexadecimal_value(&[*high, *low])
        .and_then(|value| u8::try_from(value).ok())
        .map(|byte| (Decoded::Byte(byte), 3))
}

/// Decodes an escape of JSON, or of a string literal of Rust, C, Go or Python.
fn unescaped(rest: &[u8]) -> Option<(Decoded, usize)> {
    let [b'\\', kind, arguments @ ..] = rest else { return None };
    let byte = match kind {
        b'"' | b'\'' | b'\\' | b'/' => *kind,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'f' => 12,
        b'a' => 7,
        b'v' => 11,
        b'0' => 0,
        b'x' => {
            let value = hexadecimal_value(arguments.get(..2)?)?;
            return Some((Decoded::Byte(u8::try_from(value).ok()?), 4));
        }
        b'u' => return unicode_escape(arguments).map(|(char, length)| (Decoded::Char(char), length + 2)),
        _ => return None,
    };
    Some((Decoded::Byte(byte), 2))
}

/// Decodes what follows `\u`: `00e9`, a surrogate pair, or `{e9}`.
fn unicode_escape(arguments: &[u8]) -> Option<(char, usize)> {
    if let Some(braced) = arguments.strip_prefix(b"{") {
        let length = braced.iter().take(7).position(|byte| *byte == b'}')?;
        let char = char::from_u32(hexadecimal_value(braced.get(..length)?)?)?;
        return Some((char, length + 2));
    }
    let first = hexadecimal_value(arguments.get(..4)?)?;
    if let Some(char) = char::from_u32(first) {
        return Some((char, 4));
    }
    let second = hexadecimal_value(arguments.get(4..)?.strip_prefix(b"\\u")?.get(..4)?)?;
    let units = [u16::try_from(first).ok()?, u16::try_from(second).ok()?];
    Some((char::decode_utf16(units).next()?.ok()?, 10))
}

fn hexadecimal_value(digits: &[u8]) -> Option<u32> {
    let is_hexadecimal = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    let digits = std::str::from_utf8(digits).ok().filter(|_| is_hexadecimal)?;
    u32::from_str_radix(digits, 16).ok()
}
