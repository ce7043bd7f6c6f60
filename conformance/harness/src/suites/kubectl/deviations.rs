//! Intended differences of kubectl's output on the embedded API.

/// An intended difference.
#[derive(Clone, Copy, Debug)]
pub(super) struct KubectlDeviation {
    /// Id. A command in `commands.txt` is marked with it as `~id`.
    pub(super) id: &'static str,
    /// The difference, as in the table of `docs/deviations.md`.
    pub(super) difference: &'static str,
    /// The reason, as in the table of `docs/deviations.md`.
    pub(super) reason: &'static str,
}

/// All deviations, as in the section "What kubectl shows" of `docs/deviations.md`.
pub(super) const KUBECTL_DEVIATIONS: &[KubectlDeviation] = &[
    KubectlDeviation { id: "version", difference: "`version` names our version", reason: "it is our server" },
    KubectlDeviation {
        id: "served-kinds",
        difference: "`api-resources`, `api-versions`, `get all` and `describe namespace` know fewer kinds",
        reason: "other kinds are not served",
    },
    KubectlDeviation {
        id: "explain",
        difference: "`explain` shows fields and types without descriptions, and does not say which are \
             required",
        reason: "the descriptions are larger than the rest of the API",
    },
    KubectlDeviation {
        id: "authorization",
        difference: "`auth can-i` and `cluster-info` have nothing to ask",
        reason: "there is one user, who may do everything, and there are no services",
    },
];

#[cfg(test)]
mod tests {
    use super::KUBECTL_DEVIATIONS;

    #[test]
    fn deviations_match_the_documentation() {
        let document = include_str!("../../../../../docs/deviations.md");
        let expected: Vec<String> =
            KUBECTL_DEVIATIONS.iter().map(|one| format!("| {} | {} |", one.difference, one.reason)).collect();
        let start = document.find("### What kubectl shows").unwrap();
        let found: Vec<&str> = document[start..]
            .lines()
            .filter(|line| line.starts_with("| ") && !line.starts_with("| difference"))
            .collect();
        assert_eq!(found, expected);
    }
}
