//! Text in columns.

use crate::style::TerminalText;

/// Rows of `N` cells. Columns are as wide as their longest cell and two spaces apart; trailing space is
/// removed.
#[derive(Clone, Debug)]
pub(crate) struct TextTable<const N: usize> {
    indent: &'static str,
    /// Smallest width of the first column.
    min_width: usize,
    rows: Vec<[TerminalText; N]>,
}

impl<const N: usize> TextTable<N> {
    /// A table with a header.
    pub(crate) fn new(header: [&str; N]) -> Self {
        Self { rows: vec![header.map(TerminalText::from)], ..Self::without_header() }
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

    /// Adds a row. Cells with colours are aligned only in the last column.
    pub(crate) fn push<T: Into<TerminalText>>(&mut self, row: [T; N]) {
        self.rows.push(row.map(Into::into));
    }

    /// Returns the lines of the table.
    pub(crate) fn to_text(&self) -> TerminalText {
        let mut widths = [0; N];
        widths.iter_mut().take(1).for_each(|width| *width = self.min_width);
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.width());
            }
        }
        let mut text = TerminalText::default();
        for row in &self.rows {
            let cells = row.iter().zip(widths).map(|(cell, width)| {
                let mut cell = cell.clone();
                cell.pad_to(width);
                cell
            });
            let mut line = TerminalText::from(self.indent);
            line.push(TerminalText::join(cells, "  "));
            line.trim_end();
            text.push_line(line);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_by_characters() {
        let mut table = TextTable::new(["KEY", "VALUE"]).indented("  ");
        table.push(["µ-key", "1"]);
        table.push(["a", ""]);
        assert_eq!(table.to_text().as_str(), "  KEY    VALUE\n  µ-key  1\n  a\n");
    }

    #[test]
    fn a_cell_cannot_contain_control_and_format_characters() {
        let mut table = TextTable::without_header();
        table.push(["a\n\u{1b}[2J", "b"]);
        table.push(["\u{202e}", "c"]);
        assert_eq!(table.to_text().as_str(), "a\\u{a}\\u{1b}[2J  b\n\\u{202e}         c\n");
    }
}
