//! Names in the format of DNS, as the API server validates the names of most objects. Source: RFC 1123, and
//! `IsDNS1123Label` and `IsDNS1123Subdomain` of k8s.io/apimachinery.

/// Maximum length of a DNS label in bytes.
const MAX_LABEL_BYTES: usize = 63;
/// Maximum length of a DNS subdomain in bytes. Its parts have no limit of their own, as in Kubernetes.
const MAX_SUBDOMAIN_BYTES: usize = 253;

/// Returns `true` if the text is a DNS label: lower-case letters, digits and dashes, at most 63, with a
/// letter or digit at both ends. Names of namespaces are DNS labels.
pub fn is_dns_label(text: &str) -> bool {
    text.len() <= MAX_LABEL_BYTES && is_dns_part(text)
}

/// Returns `true` if the text is a DNS subdomain: at most 253 lower-case letters, digits, dashes and dots,
/// with a letter or digit at both ends of each part between dots. Names of most objects are DNS subdomains.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= MAX_SUBDOMAIN_BYTES && text.split('.').all(is_dns_part)
}

fn is_dns_part(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty() && text.chars().all(is_inner) && !text.starts_with('-') && !text.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_labels_or_subdomains_or_neither() {
        let (long, longer) = ("a".repeat(63), "a".repeat(64));
        let (longest, too_long) = ("a".repeat(253), "a".repeat(254));
        #[rustfmt::skip] // one row a name: label, subdomain
        let table: [(&str, bool, bool); 17] = [
            ("a",         true,  true),
            ("a-1",       true,  true),
            ("1",         true,  true),
            (&long,       true,  true),
            (&longer,     false, true),
            (&longest,    false, true),
            (&too_long,   false, false),
            ("a.b",       false, true),
            ("",          false, false),
            (".",         false, false),
            ("..",        false, false),
            ("a..b",      false, false),
            ("-a",        false, false),
            ("a-",        false, false),
            ("A",         false, false),
            ("a/b",       false, false),
            ("a\u{e9}",    false, false),
        ];
        for (text, label, subdomain) in table {
            assert_eq!((is_dns_label(text), is_dns_subdomain(text)), (label, subdomain), "{text:?}");
        }
    }
}
