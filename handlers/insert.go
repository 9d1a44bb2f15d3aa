package handlers

import "strings"

// InsertNew completes an "INSERT INTO table (…) VALUES …": a row whose key is taken is left out, and the number of affected rows tells
// how many were new. key are the columns of the unique index. It waits for a rival's uncommitted row of the same key. The statement has
// the dialect's placeholders.
//
// MySQL also leaves out, or cuts, a row with a value that does not fit: check values before.
func InsertNew(tx Tx, insert string, key ...string) string {
	if tx.DriverName() == mysqlDriver {
		return tx.Rebind(strings.Replace(insert, "INSERT", "INSERT IGNORE", 1))
	}
	return tx.Rebind(insert + ` ON CONFLICT (` + strings.Join(key, ", ") + `) DO NOTHING`)
}

// Ensure completes an "INSERT INTO table (…) VALUES …" for rows of which nobody asks who made them: those that are there stay as they
// are. The number of affected rows says nothing. It suits a row that is updated next: on MySQL it is locked for that at once, where
// two that had shared it would deadlock.
func Ensure(tx Tx, insert string, key ...string) string {
	if tx.DriverName() == mysqlDriver {
		return tx.Rebind(insert + ` ON DUPLICATE KEY UPDATE ` + key[0] + ` = ` + key[0])
	}
	return InsertNew(tx, insert, key...)
}

const mysqlDriver = "mysql"
