//! Intended differences between the embedded API and kube-apiserver.

/// An intended difference.
#[derive(Debug, Clone, Copy)]
pub struct Deviation {
    /// Id. A request is marked with it as `~id`.
    pub id: &'static str,
    /// The difference, as in the table of `docs/deviations.md`.
    pub difference: &'static str,
    /// The reason, as in the table of `docs/deviations.md`.
    pub reason: &'static str,
}

/// All deviations, as in the section "The embedded API" of `docs/deviations.md`.
pub const DEVIATIONS: [Deviation; 9] = [
    Deviation {
        id: "garbage-collector",
        difference: "dependents, orphans and the contents of namespaces are gone when a deletion is answered",
        reason: "the work of the garbage collector and of the namespace controller is built in, and done at \
             once",
    },
    Deviation {
        id: "columns",
        difference: "the columns of tables have no descriptions, and numbers are of type integer",
        reason: "`kubectl get` shows neither",
    },
    Deviation {
        id: "discovery",
        difference: "`/version` and the discovery documents name fewer kinds, and no hashes of storage \
             versions",
        reason: "other kinds are not served, and data in memory needs no migration",
    },
    Deviation {
        id: "first-repetition",
        difference: "applying the same claim again writes nothing, also the first time",
        reason: "the real server writes once more without changing what is shown",
    },
    Deviation {
        id: "go-types",
        difference: "messages about wrong types call a text `string` where Go has a name of its own for it",
        reason: "the names mean the same type",
    },
    Deviation {
        id: "quantities",
        difference: "a plus sign or leading zeros of a quantity are dropped",
        reason: "the real server drops them in most places, too",
    },
    Deviation {
        id: "warnings",
        difference: "there are no `Warning` headers but those about unknown fields",
        reason: "the others concern features of a real cluster",
    },
    Deviation {
        id: "watch-paths",
        difference: "the paths below `/api/v1/watch/` are not served",
        reason: "they are deprecated, and no client uses them",
    },
    Deviation {
        id: "yaml",
        difference: "answers are JSON",
        reason: "clients that ask for YAML take JSON as well",
    },
];

#[cfg(test)]
mod tests {
    use super::DEVIATIONS;

    #[test]
    fn deviations_match_the_documentation() {
        let document = include_str!("../../../docs/deviations.md");
        let expected: Vec<String> =
            DEVIATIONS.iter().map(|one| format!("| {} | {} |", one.difference, one.reason)).collect();
        let start = document.find("## The embedded API").unwrap();
        let (section, _) = document[start..].split_once("\n### ").unwrap();
        let found: Vec<&str> = section
            .lines()
            .filter(|line| line.starts_with("| ") && !line.starts_with("| difference"))
            .collect();
        assert_eq!(found, expected);
    }
}
