//! Rows for people, spreadsheets and programs.

use std::fmt::{self, Write};

use serde_json::{Map, Value};
use spoc_tools::out::{Out, json_line, write_line};

/// Named columns and their rows.
#[derive(Debug, Default)]
pub struct Table {
    columns: &'static [&'static str],
    rows: Vec<Vec<Value>>,
    /// Lines for people, after the rows.
    pub remarks: Vec<String>,
}

impl Table {
    /// A table without rows.
    pub fn new(columns: &'static [&'static str]) -> Table {
        Table { columns, rows: Vec::new(), remarks: Vec::new() }
    }

    /// Adds a row: a cell a column.
    pub fn push(&mut self, row: Vec<Value>) {
        debug_assert_eq!(row.len(), self.columns.len());
        self.rows.push(row);
    }

    /// Prints it, as the command line wants it.
    pub fn show(&self, out: Out, csv: bool) {
        if out.is_json() {
            json_line(&self.json());
        } else if csv {
            write_line(&self.csv());
        } else {
            write_line(self);
        }
    }

    /// One object a row.
    pub fn json(&self) -> Value {
        let object = |row: &Vec<Value>| {
            let fields = self.columns.iter().map(|&name| name.to_owned()).zip(row.iter().cloned());
            Value::Object(fields.collect::<Map<_, _>>())
        };
        serde_json::json!({ "rows": self.rows.iter().map(object).collect::<Vec<_>>(), "remarks": self.remarks })
    }

    fn csv(&self) -> String {
        let mut text = self.columns.join(",");
        for row in &self.rows {
            text.push('\n');
            text.push_str(&row.iter().map(|cell| quoted(&shown(cell, ""))).collect::<Vec<_>>().join(","));
        }
        text
    }
}

/// A field of a CSV row.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

fn shown(cell: &Value, none: &str) -> String {
    match cell {
        Value::Null => none.to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_f64() => {
            number.as_f64().map_or_else(String::new, |number| format!("{number:.2}"))
        }
        other => other.to_string(),
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cells: Vec<Vec<String>> =
            self.rows.iter().map(|row| row.iter().map(|cell| shown(cell, "-")).collect()).collect();
        let width = |column: usize| {
            let widest = cells.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
            widest.max(self.columns[column].chars().count())
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let mut text = String::new();
        for (column, (name, width)) in self.columns.iter().zip(&widths).enumerate() {
            let gap = if column == 0 { "" } else { "  " };
            write!(text, "{gap}{:>width$}", name.to_uppercase())?;
        }
        for row in &cells {
            text.push('\n');
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let gap = if column == 0 { "" } else { "  " };
                write!(text, "{gap}{cell:>width$}")?;
            }
        }
        for remark in &self.remarks {
            write!(text, "\n{remark}")?;
        }
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn one_table_three_ways() {
        let mut table = Table::new(&["what", "count"]);
        table.push(vec![json!("a,\"b\""), json!(7)]);
        table.push(vec![Value::Null, json!(0.5)]);
        table.remarks.push("that is all".into());
        assert_eq!(table.csv(), "what,count\n\"a,\"\"b\"\"\",7\n,0.50");
        assert_eq!(table.to_string(), " WHAT  COUNT\na,\"b\"      7\n    -   0.50\nthat is all");
        assert_eq!(table.json()["rows"][0], json!({"what": "a,\"b\"", "count": 7}));
    }
}
