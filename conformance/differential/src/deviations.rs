//! The differences between the embedded API and the real one that are kept on purpose.

/// A difference and why it stays.
#[derive(Debug, Clone, Copy)]
pub struct Deviation {
    /// How requests name it: `~id`.
    pub id: &'static str,
    /// What is different.
    pub what: &'static str,
    /// Why.
    pub why: &'static str,
}

/// All of them. `docs/deviations.md` has the same table.
pub const DEVIATIONS: [Deviation; 9] = [
    Deviation {
        id: "collector",
        what: "dependents, orphans and the contents of namespaces are gone when a deletion is answered",
        why: "the work of the garbage collector and of the namespace controller is built in, and done at once",
    },
    Deviation {
        id: "columns",
        what: "the columns of tables have no descriptions, and numbers are of type integer",
        why: "`kubectl get` shows neither",
    },
    Deviation {
        id: "documents",
        what: "`/version` and the discovery documents name fewer kinds, and no hashes of storage versions",
        why: "other kinds are not served, and nobody migrates what is in memory",
    },
    Deviation {
        id: "first-repetition",
        what: "applying the same claim again writes nothing, also the first time",
        why: "the real server writes once more without changing what is shown",
    },
    Deviation {
        id: "go-types",
        what: "messages about wrong types call a text `string` where Go has a name of its own for it",
        why: "the name says no more",
    },
    Deviation {
        id: "quantities",
        what: "a plus sign or leading zeros of a quantity are dropped",
        why: "the real server drops them in most places, too",
    },
    Deviation {
        id: "warnings",
        what: "there are no `Warning` headers but those about unknown fields",
        why: "the others speak of clusters",
    },
    Deviation {
        id: "watch-paths",
        what: "the paths below `/api/v1/watch/` are not served",
        why: "they are deprecated, and no client uses them",
    },
    Deviation { id: "yaml", what: "answers are JSON", why: "clients that ask for YAML take JSON as well" },
];

#[cfg(test)]
mod tests {
    use super::DEVIATIONS;

    #[test]
    fn the_documentation_has_the_same_list() {
        let document = include_str!("../../../docs/deviations.md");
        let expected: Vec<String> =
            DEVIATIONS.iter().map(|one| format!("| {} | {} |", one.what, one.why)).collect();
        let start = document.find("## The embedded API").unwrap();
        let (section, _) = document[start..].split_once("\n### ").unwrap();
        let found: Vec<&str> = section
            .lines()
            .filter(|line| line.starts_with("| ") && !line.starts_with("| difference"))
            .collect();
        assert_eq!(found, expected);
    }
}
