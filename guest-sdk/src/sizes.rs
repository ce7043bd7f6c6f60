//! Selection of volume sizes.

use crate::{CapacityRange, Result, StorageError};

impl CapacityRange {
    /// Returns true if a volume of this size satisfies the range.
    pub fn contains(&self, bytes: u64) -> bool {
        self.required_bytes.is_none_or(|required| bytes >= required)
            && self.limit_bytes.is_none_or(|limit| bytes <= limit)
    }

    /// The range in words, for messages.
    pub fn describe(&self) -> String {
        match (self.required_bytes, self.limit_bytes) {
            (Some(required), Some(limit)) => format!("{required} to {limit} bytes"),
            (Some(required), None) => format!("at least {required} bytes"),
            (None, Some(limit)) => format!("at most {limit} bytes"),
            (None, None) => "any size".to_owned(),
        }
    }
}

/// The sizes that a storage supports, in bytes.
///
/// ```
/// use cofferdam_guest::{CapacityRange, sizes::Sizes};
///
/// const SIZES: Sizes = Sizes::between(1 << 20, 1 << 44).in_steps_of(1 << 20).by_default(1 << 30);
///
/// let asked = |required_bytes, limit_bytes| CapacityRange { required_bytes, limit_bytes };
/// assert_eq!(SIZES.choose(&asked(None, None)).unwrap(), 1 << 30);
/// assert_eq!(SIZES.choose(&asked(Some(1), None)).unwrap(), 1 << 20);
/// assert_eq!(
///     SIZES.choose(&asked(Some(2_000_000), Some(2_000_001))).unwrap_err().message,
///     "2000000 to 2000001 bytes: the smallest size from there on is 2097152 bytes"
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    minimum: u64,
    maximum: u64,
    step: u64,
    default: u64,
}

impl Sizes {
    /// All sizes from `minimum` to `maximum` in bytes, both included. The default size, for requests without
    /// a required size, is `minimum`.
    pub const fn between(minimum: u64, maximum: u64) -> Self {
        Self { minimum, maximum, step: 1, default: minimum }
    }

    /// Restricts sizes to multiples of `step` bytes. A step of 0 counts as 1.
    #[must_use]
    pub const fn in_steps_of(mut self, step: u64) -> Self {
        self.step = if step == 0 { 1 } else { step };
        self
    }

    /// Sets the size in bytes for requests without a required size.
    #[must_use]
    pub const fn by_default(mut self, default: u64) -> Self {
        self.default = default;
        self
    }

    /// Returns the smallest supported size of at least `required_bytes`. If `required_bytes` is `None`,
    /// returns the default size or the limit, whichever is smaller, rounded down to a multiple of the step.
    /// If the smaller of these two is below the minimum, returns the smallest supported size.
    ///
    /// # Errors
    ///
    /// - [`out_of_range`](StorageError::out_of_range) if that size is not supported or not in the range.
    pub fn choose(&self, range: &CapacityRange) -> Result<u64> {
        let out_of_range =
            |reason: String| Err(StorageError::out_of_range(format!("{}: {reason}", range.describe())));
        if let (Some(required), Some(limit)) = (range.required_bytes, range.limit_bytes)
            && required > limit
        {
            return out_of_range("no size is in this range".to_owned());
        }
        let target = match (range.required_bytes, range.limit_bytes) {
            (Some(required), _) => required,
            (None, Some(limit)) => self.default.min(limit),
            (None, None) => self.default,
        };
        if target > self.maximum {
            return out_of_range(format!("a volume has at most {} bytes", self.maximum));
        }
        // Without a required size, the size is rounded down so that it stays below the limit.
        let rounds_down = range.required_bytes.is_none() && target >= self.minimum;
        let steps =
            if rounds_down { target / self.step } else { target.max(self.minimum).div_ceil(self.step) };
        let size = steps.checked_mul(self.step).filter(|size| *size <= self.maximum);
        let size = size.filter(|size| *size >= self.minimum);
        match size {
            Some(size) if range.contains(size) => Ok(size),
            Some(size) => out_of_range(format!("the smallest size from there on is {size} bytes")),
            None => out_of_range(format!(
                "a volume has {} to {} bytes in steps of {}",
                self.minimum, self.maximum, self.step
            )),
        }
    }

    /// The size to which a volume of `now` bytes must be expanded, or `None` if the volume is large enough.
    ///
    /// # Errors
    ///
    /// - [`out_of_range`](StorageError::out_of_range) if the limit is below the current size, or if the
    ///   volume must be expanded and the range contains no supported size. Volumes never shrink.
    pub fn grow(&self, range: &CapacityRange, now: u64) -> Result<Option<u64>> {
        if range.limit_bytes.is_some_and(|limit| limit < now) {
            return Err(StorageError::out_of_range(format!(
                "{}: the volume has {now} bytes, and volumes do not shrink",
                range.describe()
            )));
        }
        match range.required_bytes {
            Some(required) if required > now => self.choose(range).map(Some),
            Some(_) | None => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    const SIZES: Sizes = Sizes::between(10, 100).in_steps_of(10).by_default(40);

    fn range(required_bytes: Option<u64>, limit_bytes: Option<u64>) -> CapacityRange {
        CapacityRange { required_bytes, limit_bytes }
    }

    #[test]
    fn the_smallest_allowed_size_is_chosen() {
        #[rustfmt::skip] // one row a case
        let table = [
            (None,           None,           Some(40)),
            (None,           Some(35),       Some(30)),
            (None,           Some(9),        None),
            (None,           Some(0),        None),
            (Some(0),        None,           Some(10)),
            (Some(1),        Some(9),        None),
            (Some(11),       None,           Some(20)),
            (Some(11),       Some(19),       None),
            (Some(20),       Some(20),       Some(20)),
            (Some(30),       Some(20),       None),
            (Some(100),      None,           Some(100)),
            (Some(101),      None,           None),
            (Some(u64::MAX), None,           None),
            (None,           Some(u64::MAX), Some(40)),
        ];
        for (required, limit, expected) in table {
            let chosen = SIZES.choose(&range(required, limit));
            assert_eq!(chosen.as_ref().ok().copied(), expected, "{required:?} {limit:?}");
            assert!(chosen.is_ok_and(|size| range(required, limit).contains(size)) == expected.is_some());
        }
        let everything = Sizes::between(1, u64::MAX).in_steps_of(1 << 20);
        let error = everything.choose(&range(Some(u64::MAX), None)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::OutOfRange, "rounding up does not overflow");
    }

    #[test]
    fn volumes_grow_and_never_shrink() {
        assert_eq!(SIZES.grow(&range(Some(41), None), 40), Ok(Some(50)));
        assert_eq!(SIZES.grow(&range(Some(40), None), 40), Ok(None));
        assert_eq!(SIZES.grow(&range(None, Some(40)), 40), Ok(None));
        assert_eq!(SIZES.grow(&range(None, Some(39)), 40).unwrap_err().kind, ErrorKind::OutOfRange);
        assert_eq!(SIZES.grow(&range(Some(101), None), 40).unwrap_err().kind, ErrorKind::OutOfRange);
    }
}
