"""Bounded jobs that survive their driver (FLIP-383): an execution graph whose finished parts are commits of Delta tables."""
