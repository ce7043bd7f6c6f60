//! Text in columns.

use std::fmt;

/// Rows of `N` cells. Columns are as wide as their longest cell and two spaces apart; trailing space is
/// removed.
#[derive(Clone, Debug)]
pub(crate) struct TextTable<const N: usize> {
    indent: &'static str,
    /// Smallest width of the first column.
    min_width: usize,
    rows: Vec<[String; N]>,
}

impl<const N: usize> TextTable<N> {
    /// A table with a header.
    pub(crate) fn new(header: [&str; N]) -> Self {
        Self { rows: vec![header.map(str::to_owned)], ..Self::without_header() }
    }

    /// A table without a header.
    pub(crate) fn without_header() -> Self {
        Self { indent: "", min_width: 0, rows: Vec::new() }
    }

    /// Indents every line.
    pub(crate) fn indented(mut self, indent: &'static str) -> Self {
        self.indent = indent;
        self
    }

    /// Sets the smallest width of the first column.
    pub(crate) fn with_min_width(mut self, width: usize) -> Self {
        self.min_width = width;
        self
    }

    /// Adds a row.
    pub(crate) fn push(&mut self, row: [String; N]) {
        self.rows.push(row);
    }
}

impl<const N: usize> fmt::Display for TextTable<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut widths = [0; N];
        widths.iter_mut().take(1).for_each(|width| *width = self.min_width);
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for row in &self.rows {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
            let line = cells.collect::<Vec<_>>().join("  ");
            writeln!(f, "{}{}", self.indent, line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_characters() {
        let mut table = TextTable::new(["KEY", "VALUE"]).indented("  ");
        table.push(["µ-key".to_owned(), "1".to_owned()]);
        table.push(["a".to_owned(), String::new()]);
        assert_eq!(table.to_string(), "  KEY    VALUE\n  µ-key  1\n  a\n");
    }
}
