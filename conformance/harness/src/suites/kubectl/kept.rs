//! What kubectl shows differently on the embedded API on purpose.

/// A difference and why it stays.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    /// How commands name it: `~id`.
    pub(super) id: &'static str,
    /// What is different.
    pub(super) what: &'static str,
    /// Why.
    pub(super) why: &'static str,
}

/// All of them. `docs/deviations.md` has the same table.
pub(super) const KEPT: &[Kept] = &[
    Kept { id: "version", what: "`version` names our version", why: "it is our server" },
    Kept {
        id: "kinds",
        what: "`api-resources`, `api-versions`, `get all` and `describe namespace` know fewer kinds",
        why: "other kinds are not served",
    },
    Kept {
        id: "explain",
        what: "`explain` shows fields and types without descriptions, and does not say which are required",
        why: "the descriptions are larger than the rest of the API",
    },
    Kept {
        id: "authorization",
        what: "`auth can-i` and `cluster-info` have nothing to ask",
        why: "there is one user, who may do everything, and there are no services",
    },
];

#[cfg(test)]
mod tests {
    use super::KEPT;

    #[test]
    fn the_documentation_has_the_same_list() {
        let document = include_str!("../../../../../docs/deviations.md");
        let expected: Vec<String> =
            KEPT.iter().map(|one| format!("| {} | {} |", one.what, one.why)).collect();
        let start = document.find("### What kubectl shows").unwrap();
        let found: Vec<&str> = document[start..]
            .lines()
            .filter(|line| line.starts_with("| ") && !line.starts_with("| difference"))
            .collect();
        assert_eq!(found, expected);
    }
}
