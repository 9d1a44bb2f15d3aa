package sqlbroker

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/oncemill/oncemill/adapters/internal/mysqlwire"
)

// ownTables are those beside the topics'. A delivery is a message that a group has not settled, free where its owner is 0. The columns that a
// claim changes are in no index, and never NULL: a row that grew would not fit into its page, which the inserts have filled.
var ownTables = []string{
	`CREATE TABLE IF NOT EXISTS oncemill_sql_queues (
		id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, topic VARBINARY(45) NOT NULL, grp VARBINARY(100) NOT NULL, active BIGINT NULL,
		filled BOOLEAN NOT NULL DEFAULT FALSE, UNIQUE KEY (topic, grp)) ENGINE = InnoDB`,
	`CREATE TABLE IF NOT EXISTS oncemill_sql_consumers (
		id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, queue BIGINT NOT NULL, name VARCHAR(255) NOT NULL, expires_at DATETIME(6) NOT NULL, KEY (queue))
		ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4`,
	"CREATE TABLE IF NOT EXISTS oncemill_sql_deliveries (queue BIGINT NOT NULL, `offset` BIGINT NOT NULL, owner BIGINT NOT NULL DEFAULT 0, count INT NOT NULL DEFAULT 0, " +
		"due DATETIME(6) NULL, PRIMARY KEY (queue, `offset`)) ENGINE = InnoDB",
}

// messageTable is as watermill-sql makes it, with payloads of any kind and UUIDs of any characters.
func messageTable(topic string) string {
	return "CREATE TABLE IF NOT EXISTS " + quoted(topic) + " (`offset` BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, `uuid` VARCHAR(36) NOT NULL, " +
		"`created_at` TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP, `payload` LONGBLOB DEFAULT NULL, `metadata` JSON DEFAULT NULL) " +
		"ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4"
}

// prepare declares or verifies, as Topology says.
func (m *mysqlServer) prepare(ctx context.Context, topic string, groups []string) error {
	if m.cfg.Topology == Off {
		return nil
	}
	m.forget(topic)
	for {
		missing := m.verify(ctx, topic, groups)
		if missing == nil || m.cfg.Topology == Verify || !errors.Is(missing, errNoTopic) && !errors.Is(missing, errNoQueue) {
			return missing
		}
		err := m.declare(ctx, topic, groups)
		if mysqlwire.Number(err) == triggerForbidden {
			return fmt.Errorf("declaring topic %s: while the server writes binary logs, making a trigger needs log_bin_trust_function_creators=1 or the right SUPER: %w", topic, err)
		}
		if !mysqlwire.Contended(err) {
			return err
		}
		// Whoever waits for the topic's table makes its publishers wait too, so nobody waits long.
		select {
		case <-ctx.Done():
			return fmt.Errorf("declaring topic %s: an open transaction that used its table stands in the way: %w", topic, err)
		case <-time.After(200*time.Millisecond + rand.N(300*time.Millisecond)):
		}
	}
}

// verify returns nil when table, queues and triggers are there.
func (m *mysqlServer) verify(ctx context.Context, topic string, groups []string) error {
	if _, err := m.payloadType(ctx, m.db, topic); err != nil {
		return err
	}
	for _, group := range groups {
		if _, err := m.queue(ctx, topic, group); err != nil {
			return err
		}
	}
	return nil
}

// payloadType returns the type of the payload column. It fails where the table is no table of messages.
func (m *mysqlServer) payloadType(ctx context.Context, db querierSQL, topic string) (string, error) {
	table := messagesTable(topic)
	m.mu.Lock()
	folded := m.found.foldedNames != 0
	m.mu.Unlock()
	if folded && topic != strings.ToLower(topic) {
		return "", fmt.Errorf("topic %s: the server folds names of tables to lower case (lower_case_table_names), so topics must be in lower case", topic)
	}
	columns := map[string]string{}
	rows, err := db.QueryContext(ctx, `SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = ?`, table)
	if err != nil {
		return "", fmt.Errorf("reading table %s: %w", table, err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name, column, kind string
		if err := rows.Scan(&name, &column, &kind); err != nil {
			return "", fmt.Errorf("reading table %s: %w", table, err)
		}
		if name == table { // the server may compare names without case
			columns[strings.ToLower(column)] = strings.ToLower(kind)
		}
	}
	if err := rows.Err(); err != nil {
		return "", fmt.Errorf("reading table %s: %w", table, err)
	}
	if len(columns) == 0 {
		return "", fmt.Errorf("topic %s: %w", topic, errNoTopic)
	}
	for _, needed := range []string{"offset", "uuid", "payload", "metadata", "created_at"} {
		if columns[needed] == "" {
			return "", fmt.Errorf("topic %s: table %s is no message table of watermill-sql's default schema for MySQL; rename the topic", topic, table)
		}
	}
	return columns["payload"], nil
}

// isPlain reports whether the topic's payload column is binary; the default of watermill-sql is JSON, which MariaDB keeps as text.
func (m *mysqlServer) isPlain(ctx context.Context, topic string) (bool, error) {
	m.mu.Lock()
	plain, known := m.plain[topic]
	m.mu.Unlock()
	if known {
		return plain, nil
	}
	kind, err := m.payloadType(ctx, m.db, topic)
	if err != nil {
		return false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.plain[topic] = strings.HasSuffix(kind, "blob") || strings.HasSuffix(kind, "binary")
	return m.plain[topic], nil
}

// forget drops what is known of the topic's table, which may have been made anew.
func (m *mysqlServer) forget(topic string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.plain, topic)
}

// queue finds a queue that is filled and whose trigger is in place: a table that was dropped took it along.
func (m *mysqlServer) queue(ctx context.Context, topic, group string) (int64, error) {
	id, filled, trigger, err := findQueue(ctx, m.db, topic, group)
	if err == nil && (!filled || !trigger) {
		err = errNoQueue
	}
	if err != nil {
		return 0, fmt.Errorf("group %s of topic %s: %w", group, topic, err)
	}
	return id, nil
}

func findQueue(ctx context.Context, db querierSQL, topic, group string) (id int64, filled, hasTrigger bool, err error) {
	err = db.QueryRowContext(ctx, `SELECT id, filled FROM oncemill_sql_queues WHERE topic = ? AND grp = ?`, topic, group).Scan(&id, &filled)
	if errors.Is(err, sql.ErrNoRows) || mysqlwire.Number(err) == noSuchTable {
		err = errNoQueue
	}
	if err == nil {
		err = db.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM information_schema.triggers WHERE trigger_schema = DATABASE() AND trigger_name = ? AND event_object_table = ?)`,
			trigger(id), messagesTable(topic)).Scan(&hasTrigger)
	}
	return id, filled, hasTrigger, err
}

// declare makes what is missing. One connection does it all while it holds a lock of the server, which ends with it: statements
// that change tables commit by themselves here.
func (m *mysqlServer) declare(ctx context.Context, topic string, groups []string) error {
	c, err := m.db.Conn(ctx)
	if err == nil {
		defer func() { _ = c.Close() }()
		defer discardConn(c) // it has the lock, and other settings
		err = m.declareOn(ctx, c, topic, groups)
	}
	if err != nil {
		return fmt.Errorf("declaring topic %s: %w", topic, err)
	}
	return nil
}

func (m *mysqlServer) declareOn(ctx context.Context, c *sql.Conn, topic string, groups []string) error {
	cfg, err := m.configure()
	if err != nil {
		return err
	}
	sum := sha256.Sum256([]byte(cfg.DBName + "/" + topic))
	lock := "oncemill.sql." + hex.EncodeToString(sum[:16])
	for got := int64(0); got != 1; {
		if err := c.QueryRowContext(ctx, `SELECT coalesce(GET_LOCK(?, 5), 0)`, lock).Scan(&got); err != nil {
			return err
		}
	}
	for _, statement := range append(ownTables[:len(ownTables):len(ownTables)], messageTable(topic), `SET SESSION lock_wait_timeout = 2`) {
		if _, err := c.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	if _, err := m.payloadType(ctx, c, topic); err != nil {
		return err
	}
	for _, group := range groups {
		if err := declareQueue(ctx, c, topic, group); err != nil {
			return err
		}
	}
	return nil
}

// declareQueue makes a queue. Making the trigger waits until every transaction that used the topic's table has ended, and keeps others
// from it until it is made; so each message is either seen by the fill or put in by the trigger, at every isolation level. Nobody
// claims from the queue before it is filled.
func declareQueue(ctx context.Context, c *sql.Conn, topic, group string) error {
	id, filled, has, err := findQueue(ctx, c, topic, group)
	if err != nil && !errors.Is(err, errNoQueue) || err == nil && filled && has {
		return err
	}
	if _, err := c.ExecContext(ctx, `INSERT INTO oncemill_sql_queues (topic, grp) VALUES (?, ?) ON DUPLICATE KEY UPDATE active = NULL, filled = FALSE`, topic, group); err != nil {
		return err
	}
	if err := c.QueryRowContext(ctx, `SELECT id FROM oncemill_sql_queues WHERE topic = ? AND grp = ?`, topic, group).Scan(&id); err != nil {
		return err
	}
	if !has {
		for n := int64(1); n > 0; { // of a table that was dropped
			if n, err = changed(ctx, c, `DELETE FROM oncemill_sql_deliveries WHERE queue = ? LIMIT 1000`, id); err != nil {
				return err
			}
		}
		_, err := c.ExecContext(ctx, fmt.Sprintf("CREATE TRIGGER %s AFTER INSERT ON %s FOR EACH ROW INSERT INTO oncemill_sql_deliveries (queue, `offset`) VALUES (%d, NEW.`offset`)",
			trigger(id), quoted(topic), id))
		if err != nil && mysqlwire.Number(err) != triggerExists {
			return err
		}
	}
	if err := fill(ctx, c, topic, id); err != nil {
		return err
	}
	_, err = c.ExecContext(ctx, `UPDATE oncemill_sql_queues SET filled = TRUE WHERE id = ?`, id)
	return err
}

// fill puts the messages that are there into the queue, a portion in each transaction. What the trigger put in stays.
func fill(ctx context.Context, c *sql.Conn, topic string, queue int64) error {
	var end sql.NullInt64
	if err := c.QueryRowContext(ctx, "SELECT max(`offset`) FROM "+quoted(topic)).Scan(&end); err != nil {
		return err
	}
	for from := int64(-1); from < end.Int64; {
		part, err := offsets(ctx, c, "SELECT `offset` FROM "+quoted(topic)+" WHERE `offset` > ? AND `offset` <= ? ORDER BY `offset` LIMIT ?", from, end.Int64, portion)
		if err != nil || len(part) == 0 {
			return err
		}
		from = part[len(part)-1]
		values := strings.ReplaceAll(numbers(part), ",", fmt.Sprintf("),(%d,", queue))
		if _, err := c.ExecContext(ctx, fmt.Sprintf("INSERT INTO oncemill_sql_deliveries (queue, `offset`) VALUES (%d,%s) ON DUPLICATE KEY UPDATE count = count", queue, values)); err != nil {
			return err
		}
	}
	return nil
}
