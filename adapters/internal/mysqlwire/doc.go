// Package mysqlwire is what adapters on MySQL and MariaDB share below their statements: connection strings, the set-up of a
// connection, and what the server's errors mean.
package mysqlwire
