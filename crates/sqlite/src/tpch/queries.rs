//! The TPC-H queries of `tpchgen`, with the validation parameters, in two dialects.
//!
//! Q15's view is a common table expression. PostgreSQL takes the rest nearly as it is. For SQLite,
//! intervals, `extract`, `substring` and column names after subqueries are rewritten. Q19's join
//! condition is moved out of its three alternatives, where SQLite does not find it.

use tpchgen::q_and_a::queries as text;

/// Whose SQL it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// SQLite's.
    Sqlite,
    /// PostgreSQL's.
    Postgresql,
}

/// A query.
#[derive(Clone, Debug)]
pub struct Query {
    /// `q1` to `q22`, or `q3_2` for a repeated query.
    pub name: String,
    /// Text in the dialect that was asked for.
    pub sql: String,
}

/// Queries that the HeuristicDB paper calls complex.
pub const COMPLEX: [usize; 5] = [3, 7, 9, 13, 20];

/// Q11's minimum share of the total value, before division by the scale factor.
const Q11_SHARE: f64 = 0.0001;

/// Each of the 22 queries once.
pub fn power(dialect: Dialect, scale: f64) -> Vec<Query> {
    let numbered = |number| query(dialect, format!("q{number}"), number, &checked(number, scale));
    (1..=22).map(numbered).collect()
}

/// The complex queries in turn, each with four sets of parameters.
///
/// These are the 20 queries of the first workload in the HeuristicDB paper.
pub fn complex(dialect: Dialect) -> Vec<Query> {
    const PARAMETERS: [[[&str; 3]; 5]; 4] = [
        [
            ["BUILDING", "1995-03-15", ""],
            ["FRANCE", "GERMANY", ""],
            ["green", "", ""],
            ["special", "requests", ""],
            ["forest", "1994-01-01", "CANADA"],
        ],
        [
            ["AUTOMOBILE", "1995-03-06", ""],
            ["CHINA", "JAPAN", ""],
            ["almond", "", ""],
            ["pending", "packages", ""],
            ["lime", "1993-01-01", "KENYA"],
        ],
        [
            ["FURNITURE", "1995-03-21", ""],
            ["BRAZIL", "PERU", ""],
            ["navajo", "", ""],
            ["unusual", "accounts", ""],
            ["azure", "1996-01-01", "EGYPT"],
        ],
        [
            ["HOUSEHOLD", "1995-03-11", ""],
            ["INDIA", "RUSSIA", ""],
            ["plum", "", ""],
            ["express", "deposits", ""],
            ["steel", "1995-01-01", "IRAN"],
        ],
    ];
    let rounds = PARAMETERS.iter().enumerate();
    let queries = rounds.flat_map(|(round, parameters)| {
        COMPLEX.iter().zip(parameters).map(move |(&number, parameters)| {
            let parameters: Vec<String> = parameters.iter().map(|&text| text.to_owned()).collect();
            query(dialect, format!("q{number}_{}", round + 1), number, &parameters)
        })
    });
    queries.collect()
}

/// Validation parameters.
fn checked(number: usize, scale: f64) -> Vec<String> {
    let fixed: &[&str] = match number {
        1 => &["90"],
        2 => &["15", "BRASS", "EUROPE"],
        3 => &["BUILDING", "1995-03-15"],
        4 => &["1993-07-01"],
        5 => &["ASIA", "1994-01-01"],
        6 => &["1994-01-01", "0.06", "24"],
        7 => &["FRANCE", "GERMANY"],
        8 => &["BRAZIL", "AMERICA", "ECONOMY ANODIZED STEEL"],
        9 => &["green"],
        10 => &["1993-10-01"],
        11 => return vec!["GERMANY".to_owned(), format!("{}", Q11_SHARE / scale)],
        12 => &["MAIL", "SHIP", "1994-01-01"],
        13 => &["special", "requests"],
        14 => &["1995-09-01"],
        15 => &["1996-01-01"],
        16 => &["Brand#45", "MEDIUM POLISHED", "49", "14", "23", "45", "19", "3", "36", "9"],
        17 => &["Brand#23", "MED BOX"],
        18 => &["300"],
        19 => &["Brand#12", "Brand#23", "Brand#34", "1", "10", "20"],
        20 => &["forest", "1994-01-01", "CANADA"],
        21 => &["SAUDI ARABIA"],
        _ => &["13", "31", "23", "29", "30", "18", "17"],
    };
    fixed.iter().map(|&text| text.to_owned()).collect()
}

fn query(dialect: Dialect, name: String, number: usize, parameters: &[String]) -> Query {
    const TEXTS: [&str; 22] = [
        text::Q1,
        text::Q2,
        text::Q3,
        text::Q4,
        text::Q5,
        text::Q6,
        text::Q7,
        text::Q8,
        text::Q9,
        text::Q10,
        text::Q11,
        text::Q12,
        text::Q13,
        text::Q14,
        text::Q15,
        text::Q16,
        text::Q17,
        text::Q18,
        text::Q19,
        text::Q20,
        text::Q21,
        text::Q22,
    ];
    let mut sql = TEXTS[number - 1].split_whitespace().collect::<Vec<_>>().join(" ");
    // Backwards, because `:1` is a prefix of `:10`.
    for (number, parameter) in parameters.iter().enumerate().rev() {
        sql = sql.replace(&format!(":{}", number + 1), parameter);
    }
    let sql = sql
        .replace("day (3)", "day")
        .replace(
            "create view revenue:s (supplier_no, total_revenue) as",
            "with revenue(supplier_no, total_revenue) as (",
        )
        .replace("group by l_suppkey; select", "group by l_suppkey) select")
        .replace("; drop view revenue:s", "")
        .replace("revenue:s", "revenue");
    let sql = match dialect {
        Dialect::Sqlite => for_sqlite(number, &sql),
        Dialect::Postgresql => sql,
    };
    let sql = format!("/* {name} */ {sql}");
    Query { name, sql }
}

/// Rewrites what SQLite does not know.
fn for_sqlite(number: usize, sql: &str) -> String {
    let sql = sql
        .replace("extract(year from l_shipdate)", "cast(strftime('%Y', l_shipdate) as integer)")
        .replace("extract(year from o_orderdate)", "cast(strftime('%Y', o_orderdate) as integer)")
        .replace("substring(c_phone from 1 for 2)", "substr(c_phone, 1, 2)")
        .replace(
            "select c_custkey, count(o_orderkey) from",
            "select c_custkey, count(o_orderkey) as c_count from",
        )
        .replace("as c_orders (c_custkey, c_count)", "as c_orders")
        .replace(
            "where ( p_partkey = l_partkey and p_brand",
            "where p_partkey = l_partkey and (( p_partkey = l_partkey and p_brand",
        );
    let sql = match number {
        19 => sql.replace("'DELIVER IN PERSON' );", "'DELIVER IN PERSON' ));"),
        _ => sql,
    };
    dates(&sql)
}

/// Rewrites `date '1995-01-01' + interval '3' month` as `date('1995-01-01', '+3 month')`.
fn dates(sql: &str) -> String {
    let mut parts = sql.split("date '");
    let mut written = parts.next().unwrap_or("").to_owned();
    for part in parts {
        let (day, rest) = part.split_once('\'').unwrap_or((part, ""));
        let interval = ["+", "-"].into_iter().find_map(|sign| {
            let rest = rest.strip_prefix(&format!(" {sign} interval '"))?;
            let (count, rest) = rest.split_once("' ")?;
            let end = rest.find(|letter: char| !letter.is_ascii_alphabetic()).unwrap_or(rest.len());
            Some((format!("date('{day}', '{sign}{count} {}')", &rest[..end]), &rest[end..]))
        });
        let (text, rest) = interval.unwrap_or_else(|| (format!("'{day}'"), rest));
        written += &text;
        written += rest;
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn postgresql_gets_standard_sql_and_sqlite_its_own() {
        let [postgresql, sqlite] = [Dialect::Postgresql, Dialect::Sqlite].map(|dialect| power(dialect, 1.0));
        let both: Vec<&Query> = postgresql.iter().chain(&sqlite).collect();
        // No view, no precision of an interval, and every parameter has its value.
        for query in both {
            assert!(!query.sql.contains("create view") && !query.sql.contains("day ("), "{}", query.sql);
            assert!((1..=10).all(|number| !query.sql.contains(&format!(":{number}"))), "{}", query.sql);
            assert_eq!(query.sql.matches(';').count(), 1, "{}", query.sql);
        }
        assert!(postgresql[0].sql.contains("date '1998-12-01' - interval '90' day"), "{}", postgresql[0].sql);
        assert!(sqlite[0].sql.contains("date('1998-12-01', '-90 day')"), "{}", sqlite[0].sql);
        for (number, text) in [(7, "extract(year from l_shipdate)"), (22, "substring(c_phone from 1 for 2)")]
        {
            assert!(postgresql[number - 1].sql.contains(text) && !sqlite[number - 1].sql.contains(text));
        }
        assert!(postgresql[14].sql.contains("with revenue(supplier_no, total_revenue) as ("));
        assert_eq!(complex(Dialect::Postgresql).len(), 20);
    }
}
