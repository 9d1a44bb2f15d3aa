-- +goose Up
CREATE TABLE counts (
	name text COLLATE "C" PRIMARY KEY,
	n    bigint NOT NULL
);
