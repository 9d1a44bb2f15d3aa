package testenv

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

// MySQLDatabase is a database of MySQL or MariaDB that belongs to one test.
type MySQLDatabase struct {
	// DSN is a connection string of the driver "mysql". Its user may do everything on the server.
	DSN string
	// Addr is the server's host and port.
	Addr string
	// Name is the database's name, which needs no quotes.
	Name string
}

// MySQL returns a fresh, empty database with the server's character set, or skips the test. options, such as "CHARACTER SET latin1", are
// those of CREATE DATABASE. At the end of the test the sessions that are still open on it are ended and it is dropped.
func MySQL(t testing.TB, options ...string) MySQLDatabase {
	t.Helper()
	server := lookup(t, "mariadb")[0]
	cfg, err := mysql.ParseDSN(server)
	if err != nil {
		t.Fatalf("testenv: ONCEMILL_TEST_MYSQL: %v", err)
	}
	db := MySQLDatabase{Addr: cfg.Addr, Name: "test_" + strings.ToLower(rand.Text()[:16])}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := onMySQL(ctx, server, "CREATE DATABASE "+db.Name+" "+strings.Join(options, " ")); err != nil {
		t.Fatalf("testenv: create database: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
		defer cancel()
		if err := dropMySQL(ctx, server, db.Name); err != nil {
			t.Errorf("testenv: drop database %s: %v", db.Name, err)
		}
	})
	cfg.DBName = db.Name
	db.DSN = cfg.FormatDSN()
	return db
}

// dropMySQL ends leftover sessions first: one open transaction would block the drop for ever.
func dropMySQL(ctx context.Context, server, name string) error {
	db, err := sql.Open("mysql", server)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	rows, err := db.QueryContext(ctx, "SELECT id FROM information_schema.processlist WHERE db = ?", name)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	var kills []string
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return err
		}
		kills = append(kills, fmt.Sprintf("KILL %d", id))
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for _, kill := range kills {
		_, _ = db.ExecContext(ctx, kill) // it may have ended meanwhile
	}
	_, err = db.ExecContext(ctx, "DROP DATABASE "+name)
	return err
}

func onMySQL(ctx context.Context, server string, statement string) error {
	db, err := sql.Open("mysql", server)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	_, err = db.ExecContext(ctx, statement)
	return err
}
