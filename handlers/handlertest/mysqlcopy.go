package handlertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"
)

func (m *mysqlDatabase) copy(t testing.TB, _ *sqlx.DB) database {
	t.Helper()
	c := createMySQL(t, m.server, m.family)
	c.ahead.Store(m.ahead.Load())
	ctx := t.Context()
	err := onServer(ctx, m.server, c.name, func(conn *sqlx.Conn) error {
		return mysqlCopy{ctx, conn, "`" + m.name + "`."}.all(m.name)
	})
	if err != nil {
		t.Fatalf("handlertest: copying the database: %v", err)
	}
	return c
}

// mysqlCopy copies what stands in another database into the one that conn is connected to.
type mysqlCopy struct {
	ctx  context.Context
	conn *sqlx.Conn
	from string
}

// all copies everything, triggers last, so that they see nothing of it.
func (c mysqlCopy) all(database string) error {
	var others int
	err := c.conn.GetContext(c.ctx, &others, `SELECT (SELECT count(*) FROM information_schema.routines WHERE routine_schema = ? AND routine_name <> ?)
		+ (SELECT count(*) FROM information_schema.tables WHERE table_schema = ? AND table_type <> 'BASE TABLE')`, database, mysqlClock, database)
	switch {
	case err != nil:
		return err
	case others > 0:
		return errors.New("on MySQL the kit copies tables and triggers, and there are views or routines: prove this plugin on another database")
	}
	// A copy has what the first has, in any order and with its own numbers.
	for _, statement := range []string{"SET foreign_key_checks = 0, sql_mode = 'NO_AUTO_VALUE_ON_ZERO'", mysqlClockFunction} {
		if _, err := c.conn.ExecContext(c.ctx, statement); err != nil {
			return err
		}
	}
	for _, part := range []struct {
		names string
		copy  func(name string) error
	}{
		{`SELECT table_name FROM information_schema.tables WHERE table_schema = ?`, c.table},
		{`SELECT trigger_name FROM information_schema.triggers WHERE trigger_schema = ? ORDER BY event_object_table, action_order`, c.trigger},
	} {
		var names []string
		if err := c.conn.SelectContext(c.ctx, &names, part.names, database); err != nil {
			return err
		}
		for _, name := range names {
			if err := part.copy(name); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

// table copies a table and its rows, without the columns that the server computes.
func (c mysqlCopy) table(name string) error {
	if err := c.create("TABLE", name, "Create Table"); err != nil {
		return err
	}
	var columns []string
	err := c.conn.SelectContext(c.ctx, &columns, `SELECT concat('`+"`', column_name, '`"+`') FROM information_schema.columns
		WHERE table_schema = database() AND table_name = ? AND coalesce(generation_expression, '') = '' ORDER BY ordinal_position`, name)
	if err != nil {
		return err
	}
	list := strings.Join(columns, ", ")
	_, err = c.conn.ExecContext(c.ctx, fmt.Sprintf("INSERT INTO `%s` (%s) SELECT %s FROM %s`%s`", name, list, list, c.from, name))
	return err
}

func (c mysqlCopy) trigger(name string) error {
	return c.create("TRIGGER", name, "SQL Original Statement")
}

// create runs the statement that made a thing, which the server shows in the column of that name.
func (c mysqlCopy) create(what, name, column string) error {
	rows, err := c.conn.QueryxContext(c.ctx, fmt.Sprintf("SHOW CREATE %s %s`%s`", what, c.from, name))
	if err != nil {
		return err
	}
	defer rows.Close()
	shown := map[string]any{}
	for rows.Next() {
		if err := rows.MapScan(shown); err != nil {
			return err
		}
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return err
	}
	_, err = c.conn.ExecContext(c.ctx, fmt.Sprintf("%s", shown[column]))
	return err
}
