package handlertest

import (
	"maps"
	"slices"
	"strings"
)

// snapshot is the content of every table that is not the engine's own memory, by table.
func (k *Kit) snapshot() map[string]string {
	k.t.Helper()
	var tables []string
	err := k.DB().SelectContext(k.t.Context(), &tables, k.place.tables())
	if err != nil {
		k.t.Fatalf("handlertest: listing tables: %v", err)
	}
	content := map[string]string{}
	for _, table := range tables {
		content[table] = k.content(table)
	}
	return content
}

func (k *Kit) content(table string) string {
	k.t.Helper()
	rows, err := k.DB().QueryxContext(k.t.Context(), "SELECT * FROM "+table)
	if err != nil {
		k.t.Fatalf("handlertest: reading table %s: %v", table, err)
	}
	defer rows.Close()
	var lines []string
	for rows.Next() {
		row, err := rows.SliceScan()
		if err != nil {
			k.t.Fatalf("handlertest: reading table %s: %v", table, err)
		}
		lines = append(lines, line(row))
	}
	if err := rows.Err(); err != nil {
		k.t.Fatalf("handlertest: reading table %s: %v", table, err)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// unchanged checks that every table is as it was.
func (k *Kit) unchanged(before map[string]string, after string) {
	k.t.Helper()
	now := k.snapshot()
	for _, table := range slices.Sorted(maps.Keys(now)) {
		if now[table] != before[table] {
			k.t.Errorf("%s changed table %s from\n%s\nto\n%s", after, table, before[table], now[table])
		}
	}
}
