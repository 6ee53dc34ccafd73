//! Tables of text.

use comfy_table::{Table, presets};

/// Columns as wide as their widest cell, two spaces apart.
#[must_use]
pub fn table<const N: usize>(rows: &[[String; N]]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let rows = [["A", "LONG"], ["wide", ""], ["", "x"]].map(|row| row.map(str::to_owned));
        assert_eq!(table(&rows), "A     LONG\nwide\n      x\n");
    }
}
