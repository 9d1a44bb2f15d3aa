package mysqlstore

import (
	"context"
	"database/sql/driver"
)

// mysqlStmt is what the driver's prepared statements implement.
type mysqlStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
	driver.NamedValueChecker
}

// stmt is a prepared statement, which sees what its connection must know of errors.
type stmt struct {
	mysqlStmt
	conn *conn
}

// ExecContext implements driver.StmtExecContext.
func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	if err := s.conn.refuse(""); err != nil {
		return nil, err
	}
	result, err := s.mysqlStmt.ExecContext(ctx, args)
	return result, s.conn.note(err)
}

// QueryContext implements driver.StmtQueryContext.
func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	if err := s.conn.refuse(""); err != nil {
		return nil, err
	}
	found, err := s.mysqlStmt.QueryContext(ctx, args)
	if err != nil {
		return nil, s.conn.note(err)
	}
	return noted(s.conn, found), nil
}

// mysqlRows is what the driver's answers implement.
type mysqlRows interface {
	driver.RowsNextResultSet
	driver.RowsColumnTypeDatabaseTypeName
	driver.RowsColumnTypeNullable
	driver.RowsColumnTypePrecisionScale
	driver.RowsColumnTypeScanType
}

// rows is an answer: a deadlock may show only when it is read.
type rows struct {
	mysqlRows
	conn *conn
}

func noted(c *conn, found driver.Rows) driver.Rows {
	if r, ok := found.(mysqlRows); ok {
		return &rows{r, c}
	}
	return found
}

// Next implements driver.Rows.
func (r *rows) Next(dest []driver.Value) error { return r.conn.note(r.mysqlRows.Next(dest)) }
