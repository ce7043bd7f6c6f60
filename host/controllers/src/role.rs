//! Roles: the names that `--role` accepts.

use std::{fmt, str::FromStr};

use crate::table::CONTROLLERS;

/// The name of a controller, as `--role` spells it. Each controller declares its own in its folder.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Role(&'static str);

/// Error of parsing a name that is not a role.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown role {name:?}: expected one of {}", Role::ALL.map(Role::as_str).join(", "))]
pub struct UnknownRole {
    /// The rejected name.
    pub name: String,
}

impl Role {
    /// Every role of [`CONTROLLERS`], in the order of the table.
    #[expect(clippy::indexing_slicing, reason = "evaluated by the compiler")]
    pub const ALL: [Self; CONTROLLERS.len()] = {
        let mut roles = [Self(""); CONTROLLERS.len()];
        let mut index = 0;
        while index < roles.len() {
            roles[index] = CONTROLLERS[index].role;
            index += 1;
        }
        roles
    };

    /// Declares a role.
    pub const fn new(name: &'static str) -> Self {
        Self(name)
    }

    /// The name.
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl fmt::Debug for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}

impl FromStr for Role {
    type Err = UnknownRole;

    fn from_str(name: &str) -> Result<Self, UnknownRole> {
        Self::ALL
            .into_iter()
            .find(|role| role.as_str() == name)
            .ok_or_else(|| UnknownRole { name: name.to_owned() })
    }
}
