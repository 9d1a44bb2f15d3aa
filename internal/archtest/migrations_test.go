package archtest

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// breaking are what a migration after the first must not hold: while it runs, and until the last process is replaced, programs of the version before work
// on its tables.
var breaking = []struct {
	form *regexp.Regexp
	why  string
}{
	{regexp.MustCompile(`\bDROP\s+(TABLE|COLUMN|VIEW|FUNCTION|TYPE|SCHEMA)\b|\bDROP\s+\w+\s*(;|,|$)`), "the version before uses it: drop it one version after the last one that does"},
	{regexp.MustCompile(`\bRENAME\b|\bCHANGE\s+(COLUMN\s+)?\w+\s+\w+\s`), "the version before knows the old name: add the new one beside it"},
	{regexp.MustCompile(`\bALTER\s+(COLUMN\s+)?\w+\s+(SET\s+DATA\s+)?TYPE\b|\bMODIFY\b`), "the version before reads and writes the old type: add a column beside it"},
	{regexp.MustCompile(`\bSET\s+NOT\s+NULL\b`), "the version before leaves it empty"},
	{regexp.MustCompile(`\bADD\s+(CONSTRAINT|CHECK|FOREIGN|PRIMARY|UNIQUE)\b|\bCREATE\s+UNIQUE\s+INDEX\b`), "the version before does not know the rule; on a new table it can stand in CREATE TABLE"},
	{regexp.MustCompile(`\b(DELETE\s+FROM|TRUNCATE)\b`), "the version before may need the rows"},
}

var (
	newColumn   = regexp.MustCompile(`\bADD\s+(?:COLUMN\s+)?(?:IF\s+NOT\s+EXISTS\s+)?(\w+)\s+([^;,']*)`)
	sqlComment  = regexp.MustCompile(`(?m)--.*$`)
	migrationOf = regexp.MustCompile(`^\d{5}_\w+\.sql$`)
)

// breaks says what of a migration's SQL would break the version before; "" where nothing does.
func breaks(up string) string {
	up = strings.ToUpper(sqlComment.ReplaceAllString(up, ""))
	for _, b := range breaking {
		if found := b.form.FindString(up); found != "" {
			return strings.TrimSpace(found) + ": " + b.why
		}
	}
	for _, m := range newColumn.FindAllStringSubmatch(up, -1) {
		if strings.Contains(m[2], "NOT NULL") && !strings.Contains(m[2], "DEFAULT") && !strings.Contains(m[2], "GENERATED") {
			return "ADD COLUMN " + m[1] + ": the version before inserts rows without it: give it a DEFAULT, or let it be NULL"
		}
	}
	return ""
}

// TestMigrationsServeTheVersionBefore reads every migration but the first of each set, and that all dialects have the same ones.
func TestMigrationsServeTheVersionBefore(t *testing.T) {
	folders := map[string][]string{} // the migrations of each dialect of a set
	err := fs.WalkDir(os.DirFS("../.."), ".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (strings.HasPrefix(entry.Name(), ".") && file != "." || entry.Name() == "testdata") {
			return fs.SkipDir
		}
		if !strings.Contains(file, "/migrations/") || !migrationOf.MatchString(entry.Name()) {
			return nil
		}
		if strings.HasPrefix(file, "examples/") {
			return nil // an example is for one database
		}
		folders[path.Dir(file)] = append(folders[path.Dir(file)], entry.Name())
		if strings.HasPrefix(entry.Name(), "00001_") {
			return nil
		}
		text, err := os.ReadFile(filepath.Join("../..", file))
		if err != nil {
			return err
		}
		_, up, _ := strings.Cut(string(text), "-- +goose Up")
		up, _, _ = strings.Cut(up, "-- +goose Down")
		if why := breaks(up); why != "" {
			t.Errorf("%s: %s", file, why)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	sets := map[string]string{} // of each set, the names that the first dialect has
	for folder, names := range folders {
		set := path.Dir(folder)
		if strings.HasPrefix(folder, "adapters/store/") {
			set = "adapters/store"
		}
		if first, known := sets[set]; known && first != strings.Join(names, " ") {
			t.Errorf("%s has %s, another dialect of %s has %s", folder, strings.Join(names, " "), set, first)
		}
		sets[set] = strings.Join(names, " ")
	}
	if len(sets) < 5 || len(folders) != 3*len(sets) {
		t.Errorf("%d folders of %d sets: every set has three dialects", len(folders), len(sets))
	}
}

func TestBreakingMigrationsAreFound(t *testing.T) {
	for _, bad := range []string{
		`DROP TABLE t;`, `ALTER TABLE t DROP COLUMN c;`, "ALTER TABLE t DROP c;", `alter table t rename to u;`, `ALTER TABLE t RENAME COLUMN a TO b;`,
		`ALTER TABLE t CHANGE a b int NULL;`, `ALTER TABLE t ALTER COLUMN a TYPE bigint;`, `ALTER TABLE t ALTER a SET DATA TYPE text;`,
		`ALTER TABLE t MODIFY a bigint;`, `ALTER TABLE t ALTER COLUMN a SET NOT NULL;`, `ALTER TABLE t ADD CONSTRAINT x CHECK (a > 0);`,
		`CREATE UNIQUE INDEX i ON t (a);`, `DELETE FROM t;`, `TRUNCATE t;`, `ALTER TABLE t ADD COLUMN a int NOT NULL;`, `ALTER TABLE t ADD a int NOT NULL;`,
		`ALTER TABLE t ADD COLUMN a int, ADD COLUMN b int NOT NULL;`, `SET @q = 'ALTER TABLE t DROP COLUMN c'; PREPARE q FROM @q;`,
	} {
		if breaks(bad) == "" {
			t.Errorf("not refused: %s", bad)
		}
	}
	for _, good := range []string{
		`CREATE TABLE t (a int NOT NULL, UNIQUE (a));`, `ALTER TABLE t ADD COLUMN a int;`, `ALTER TABLE t ADD COLUMN a int NOT NULL DEFAULT 0;`,
		`CREATE INDEX CONCURRENTLY i ON t (a);`, `DROP INDEX i;`, `INSERT INTO t (a) VALUES (1);`, `-- DROP TABLE t;`, `DEALLOCATE PREPARE q;`,
	} {
		if why := breaks(good); why != "" {
			t.Errorf("refused: %s: %s", good, why)
		}
	}
}
