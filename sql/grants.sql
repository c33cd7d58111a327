-- Nothing for PUBLIC; runs after every migrate, so it covers what a new version added.
REVOKE ALL ON ALL TABLES IN SCHEMA messages FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA messages FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA messages FROM PUBLIC;
