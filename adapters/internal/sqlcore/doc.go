// Package sqlcore is what the SQL stores share: the tables' statements, how a claim is
// judged, how completions are written, the outbox with its lanes, parked messages and the
// migrations. A dialect supplies the differences of one database: how a query is
// spelled, how statements are sent, and what an error means.
//
// Queries are written once, with '?' for arguments and a few marks in braces, which Dialect.Bind turns
// into the database's own words:
//
//	{now}        the store's clock, where a value is written
//	{clock}      the store's clock, where a column is compared with it
//	{later}      the store's clock plus an argument of type Later
//	{rows}       the rows of Stmt.Set, as the body of a WITH v(...) AS ({rows}); its last column is the row's number
//	{list}       the test "is one of" over Stmt.List
//	{at COL}     the store's clock plus a column of a Set of type later
//	{json}       the cast of a text to the result column's type
//	{lock T}     FOR UPDATE of a table, {skip T} with SKIP LOCKED, {share} FOR SHARE, where the database has row locks
//	{true} {false} {empty}  constants: truth values, no bytes
//	{server}     what tells this server, and its timeline, from another one with a copy of the data
//	{ident COL}  the parked identity of a key column (see identity)
//
// What a database cannot say in one statement it says in others: see Rephraser.
//
// # Guarantees
//
// A key's row and all that commits with it are written in one transaction of the database. A
// claim is an insert, judged by the rows that came back; what lost is read again in a new statement. Every change of a
// lease holder names its token in the statement that makes the change. A crash before
// COMMIT leaves nothing; a crash after it leaves everything.
//
// Lock order is: keys, sorted; then rows of business tables; then parked rows; then outbox lanes.
package sqlcore
