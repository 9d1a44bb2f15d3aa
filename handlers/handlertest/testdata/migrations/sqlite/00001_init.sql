-- +goose Up
CREATE TABLE seen (id text NOT NULL);
CREATE TABLE totals (name text PRIMARY KEY NOT NULL, n integer NOT NULL);
